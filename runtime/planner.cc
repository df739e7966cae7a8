#include "runtime/planner.h"

#include <algorithm>
#include <cmath>

namespace niche {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr double kRestAfterGain = 5, kRestBusy = 30, kRestBroken = 10, kRestRefused = 3600;
constexpr double kRestFirst = 20, kRestMax = 3600;  // without gain: doubles
constexpr int64_t kThrottledPause = 2 * kSecond;

int64_t seconds(double s) { return static_cast<int64_t>(s * 1e9); }

}  // namespace

std::string Planner::pause_reason(const Conditions& now) {
  // A bucket that holds cpu_window_seconds' worth: short sessions run freely, long ones are held to the
  // share.
  const double capacity = options_.cpu_share * options_.cpu_window_seconds;
  if (cpu_ns_ == 0) {
    cpu_left_ = capacity;
  } else {
    cpu_left_ += static_cast<double>(now.now_ns - cpu_ns_) / 1e9 * options_.cpu_share;
    cpu_left_ -= std::max(0.0, now.session_cpu_seconds - cpu_seen_);
    cpu_left_ = std::clamp(cpu_left_, -capacity, capacity);  // what was overdrawn between two looks is owed
  }
  cpu_ns_ = now.now_ns;
  cpu_seen_ = now.session_cpu_seconds;
  cpu_paused_ = cpu_paused_ ? cpu_left_ < 0.1 * capacity : cpu_left_ <= 0;

  if (now.throttled >= 0) {
    if (throttled_seen_ >= 0 && now.throttled > throttled_seen_)
      throttled_until_ns_ = now.now_ns + kThrottledPause;
    throttled_seen_ = now.throttled;
  }
  if (now.paused_by_owner) return "paused by its owner";
  if (now.memory_share > options_.memory_share_max) return "memory above memory_share_max";
  if (now.now_ns < throttled_until_ns_) return "the cgroup is being throttled";
  if (now.p99_suffers) return "serving p99 suffers";
  if (cpu_paused_) return "CPU budget is spent";
  return {};
}

const telemetry::HotDefinition* Planner::next(const std::vector<telemetry::HotDefinition>& ranking,
                                              const Conditions& now, std::string* why_not) {
  *why_not = ranking.empty() ? "nothing is hot" : "nothing hot is due";
  for (const telemetry::HotDefinition& hot : ranking) {
    Record& r = records_[hot.definition];
    if (hot.device_ns_per_s / 1e9 < options_.hot_share_min) {
      r.first_hot_ns = 0;
      continue;
    }
    if (r.first_hot_ns == 0) r.first_hot_ns = now.now_ns;
  }
  if (now.running >= options_.sessions_max) {
    *why_not = "sessions_max are running";
    return nullptr;
  }
  if (!now.p99_known) {
    *why_not = "measuring p99 without sessions";
    return nullptr;
  }
  if (last_end_ns_ != 0 && now.now_ns - last_end_ns_ < seconds(options_.session_gap_seconds)) {
    *why_not = "resting between sessions";
    return nullptr;
  }
  const telemetry::HotDefinition* again = nullptr;
  for (const telemetry::HotDefinition& hot : ranking) {
    const Record& r = records_[hot.definition];
    const bool due = !r.running && hot_long_enough(r, now.now_ns) && now.now_ns >= r.not_before_ns;
    if (!due || hot.problems.empty()) continue;
    // Breadth first: a first kernel is worth more than the next few per cent of an operator that has one.
    if (r.sessions == 0) return &hot;
    if (again == nullptr) again = &hot;
  }
  return again;
}

bool Planner::hot_long_enough(const Record& r, int64_t now_ns) const {
  return r.first_hot_ns != 0 && now_ns - r.first_hot_ns >= seconds(options_.hot_seconds_min);
}

bool Planner::should_yield(const Progress& session, const std::vector<telemetry::HotDefinition>& ranking,
                           int64_t now_ns) const {
  constexpr double kWorthMore = 1.03;
  if (session.kernels == 0 && (session.tried < kFruitless || session.best_speedup > kWorthMore)) return false;
  return std::any_of(ranking.begin(), ranking.end(), [&](const telemetry::HotDefinition& hot) {
    const auto at = records_.find(hot.definition);
    return hot.definition != session.definition && at != records_.end() && at->second.sessions == 0 &&
           hot_long_enough(at->second, now_ns) && !hot.problems.empty();
  });
}

void Planner::session_started(uint32_t definition) {
  Record& r = records_[definition];
  r.running = true;
  ++r.sessions;
}

void Planner::session_ended(uint32_t definition, Outcome outcome, int64_t now_ns) {
  Record& r = records_[definition];
  r.running = false;
  r.last = outcome;
  last_end_ns_ = now_ns;
  double rest = 0;
  switch (outcome) {
    case Outcome::kGained:
      r.without_gain = 0;
      rest = kRestAfterGain;
      break;
    case Outcome::kYielded:
      rest = kRestAfterGain;
      break;
    case Outcome::kNothing:
      rest = std::min(kRestMax, kRestFirst * std::exp2(r.without_gain++));
      break;
    case Outcome::kRefused:
      rest = kRestRefused;
      break;
    case Outcome::kBusy:
      rest = kRestBusy;
      break;
    case Outcome::kBroken:
      rest = std::min(kRestMax, kRestBroken * std::exp2(r.without_gain++));
      break;
  }
  r.not_before_ns = now_ns + seconds(rest);
}

std::string Planner::describe(uint32_t definition, int64_t now_ns) const {
  const auto at = records_.find(definition);
  if (at == records_.end() || (at->second.first_hot_ns == 0 && at->second.sessions == 0))
    return "none: not hot";
  const Record& r = at->second;
  if (r.running) return "running";
  if (r.not_before_ns > now_ns) {
    static constexpr const char* kWhy[] = {"with gain",
                                           "without gain",
                                           "that gave way",
                                           "that the worker refused",
                                           "that another process holds",
                                           "whose worker died"};
    return "resting for " + std::to_string((r.not_before_ns - now_ns) / kSecond) + " s after a session " +
           kWhy[static_cast<size_t>(r.last)];
  }
  return r.first_hot_ns == 0 ? "none: not hot any more" : "planned";
}

std::vector<evolve::SeenProblem> seen_problems(const telemetry::HotDefinition& hot, int var_axes) {
  std::vector<evolve::SeenProblem> out;
  for (const telemetry::HotProblem& p : hot.problems)
    out.push_back({{p.axes.begin(), p.axes.begin() + var_axes}, p.weight, p.cold});
  return out;
}

}  // namespace niche
