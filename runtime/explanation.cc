#include "runtime/explanation.h"

#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

namespace niche {
namespace {

std::string gain_text(const ExplainedKernel& k) {
  if (k.kernel_ns <= 0 || k.fallback_ns <= 0) return {};
  char text[96];
  std::snprintf(text, sizeof text, " %.2fx (%.2f us against %.2f us)", k.fallback_ns / k.kernel_ns,
                k.kernel_ns / 1e3, k.fallback_ns / 1e3);
  return text;
}

std::string utc(int64_t unix_ns) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts));
}

}  // namespace

std::string Explanation::to_text() const {
  std::string t = definition + " " + problem + "\n";
  t += "  served by: " + kernel + "\n";
  t += "  rung:      " + rung + "\n";
  t += "  why:       " + why + "\n";
  t += "  rollout:   " + rollout + "\n";
  for (const ExplainedKernel& k : kernels) {
    t += "  kernel:    " + k.name + " [" + k.state + "]" + gain_text(k) + "\n";
    if (!k.guard.empty()) t += "             guard: " + k.guard + "\n";
    if (k.verified_unix_ns != 0) t += "             verified: " + utc(k.verified_unix_ns) + "\n";
    if (!k.reason.empty()) t += "             " + k.reason + "\n";
  }
  t += "  session:   " + session + "\n";
  t += "  evolution: " + evolution + "\n";
  t += "  cache:     " + cache + "\n";
  return t;
}

std::string Explanation::to_json() const {
  nlohmann::ordered_json j{{"definition", definition},
                           {"problem", problem},
                           {"kernel", kernel},
                           {"rung", rung},
                           {"why", why},
                           {"rollout", rollout},
                           {"session", session},
                           {"evolution", evolution},
                           {"cache", cache}};
  j["kernels"] = nlohmann::ordered_json::array();
  for (const ExplainedKernel& k : kernels)
    j["kernels"].push_back({{"name", k.name},
                            {"state", k.state},
                            {"reason", k.reason},
                            {"guard", k.guard},
                            {"verified_unix_ns", k.verified_unix_ns},
                            {"kernel_ns", k.kernel_ns},
                            {"fallback_ns", k.fallback_ns}});
  return j.dump(2);
}

}  // namespace niche
