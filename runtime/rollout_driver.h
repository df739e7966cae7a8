// RolloutDriver: feeds one challenger's Rollout (runtime/rollout) with what live calls leave behind: timed
// calls become log ratios against what their shape usually takes, and one observation a request.
//
// Pure: time and traffic are given. Thread-safety: one owner. Bounds: those of runtime/rollout, and kTailMax
// times.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dispatch/counters.h"
#include "dispatch/route.h"
#include "runtime/rollout/request_fold.h"
#include "runtime/rollout/rollout.h"
#include "runtime/rollout/shape_predictor.h"

namespace niche::core {

class RolloutDriver {
 public:
  // A call's cost in any unit, from its variable axes; 0: unknown.
  using Work = std::function<double(const int64_t* var_axes)>;

  RolloutDriver(uint64_t challenger, const rollout::Policy& policy, Work work, int64_t now_ns)
      : challenger_(challenger), rollout_(policy, now_ns), work_(std::move(work)) {}

  void add_match() { rollout_.shadow_match(); }
  // A timed call of the Definition; others than the two arms' are ignored.
  void add_timing(const dispatch::EventRecord& e, double ns, int64_t now_ns);
  void close_request(uint64_t request, int64_t now_ns);
  // Once a tick. `calls_per_s`: of the Definition.
  const rollout::Decision& step(double calls_per_s, int64_t now_ns);
  // Skips shadow, half and half: for a kernel that has served and is suspected.
  void start_in_canary(int64_t now_ns) { rollout_.start_in_canary(now_ns); }

  // The control arm's median time a unit of work; 0: nothing seen.
  double control_median() const;
  std::string describe() const { return rollout_.explain(); }

 private:
  void observe(int64_t now_ns);

  const uint64_t challenger_;
  rollout::Rollout rollout_;
  rollout::RequestFold fold_;
  rollout::ShapePredictor predictor_;
  const Work work_;
  std::vector<rollout::Observation> finished_;
  std::vector<float> control_;

  static constexpr size_t kTailMax = 4096;
};

// The state of a route that a stage means.
dispatch::RolloutState route_state(rollout::Stage stage);

// After promotion: does an incumbent still do what it was promoted for? Suspects when two windows in a row
// are slower than the control arm (or the Verdict's fallback) was; suspicion is settled by a new canary,
// never by this alone.
class IncumbentWatch {
 public:
  static constexpr int kWindow = 48;
  explicit IncumbentWatch(double baseline_ns_per_work = 0) : baseline_(baseline_ns_per_work) {}
  // Returns true when it suspects; then it starts over with twice the patience.
  bool add(double ns_per_work);

 private:
  double baseline_;
  std::vector<float> window_;
  int slow_ = 0, patience_ = 2;
};

}  // namespace niche::core
