#include "runtime/explanation.h"

#include <cstdio>
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

}  // namespace

std::string Explanation::to_text() const {
  std::string t = definition + " " + problem + "\n";
  t += "  served by: " + kernel + "\n";
  t += "  rung:      " + rung + "\n";
  t += "  why:       " + why + "\n";
  t += "  rollout:   " + rollout + "\n";
  for (const ExplainedKernel& k : kernels) {
    t += "  kernel:    " + k.name + " [" + k.state + "]" + gain_text(k) + "\n";
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
                            {"kernel_ns", k.kernel_ns},
                            {"fallback_ns", k.fallback_ns}});
  return j.dump(2);
}

}  // namespace niche
