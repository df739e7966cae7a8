#include "examples/ranker/status_summary.h"

#include <nlohmann/json.hpp>

namespace ranker {
namespace {

using nlohmann::json;

// Time from the first session to the first canary, in seconds; 0: none yet. The first operator's session
// begins when it becomes hot; later operators wait for their turn.
double first_swap(const json& events) {
  int64_t hot = 0;
  for (const json& e : events) {
    const std::string kind = e.at("kind");
    const auto at = e.at("unix_ns").get<int64_t>();
    if (kind == "session started" && hot == 0) hot = at;
    if (kind == "canary" && hot != 0) return static_cast<double>(at - hot) / 1e9;
  }
  return 0;
}

}  // namespace

niche::dispatch::Result<StatusSummary> summarize_status(const std::string& text) {
  try {
    const json j = json::parse(text);
    StatusSummary s;
    s.sessions = j.at("sessions").at("started").get<int>();
    s.sessions_running = j.at("sessions").at("running").get<int>();
    s.swaps = j.at("swaps").get<int>();
    s.rollbacks = j.at("rollbacks").get<int>();
    s.first_swap_s = first_swap(j.at("events"));
    for (const json& d : j.at("definitions")) {
      if (d.at("session") == "running")
        s.current =
            d.at("op").get<std::string>() + ": " + std::to_string(d.at("tried").get<int>()) + " tried";
      for (const json& k : d.at("kernels")) s.rollouts_running += k.at("state") != "incumbent";
    }
    for (const json& e : j.at("events"))
      s.events.push_back(e.at("kind").get<std::string>() + "  " + e.at("definition").get<std::string>() +
                         "  " + e.at("text").get<std::string>());
    return s;
  } catch (const json::exception& e) {
    return niche::dispatch::corrupt(std::string("status JSON: ") + e.what());
  }
}

}  // namespace ranker
