#include "runtime/rollout_driver.h"

#include <algorithm>

#include "dispatch/base/hash.h"

namespace niche::core {

using dispatch::RolloutState;
using dispatch::Rung;

namespace {

double median(std::vector<float> v) {
  const auto at = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

}  // namespace

void RolloutDriver::add_timing(const dispatch::EventRecord& e, double ns, int64_t now_ns) {
  const bool challenger = e.rung == Rung::kCanary && e.kernel_id == challenger_;
  if (rollout_.decision().stage != rollout::Stage::kCanary || (!challenger && e.rung != Rung::kControl))
    return;
  const double work = work_(e.axes);
  if (!(work > 0) || !(ns > 0)) return;
  uint64_t shape = 0;
  for (int64_t axis : e.axes)
    shape = dispatch::mix64(shape ^ static_cast<uint64_t>(axis)) + 0x9e3779b97f4a7c15ULL;
  const rollout::Arm arm = challenger ? rollout::Arm::kChallenger : rollout::Arm::kControl;
  fold_.add(e.request_id, arm, predictor_.log_ratio(shape, work, ns), ns, now_ns, &finished_);
  if (!challenger && control_.size() < kTailMax) control_.push_back(static_cast<float>(ns / work));
  observe(now_ns);
}

void RolloutDriver::close_request(uint64_t request, int64_t now_ns) {
  fold_.close(request, &finished_);
  observe(now_ns);
}

void RolloutDriver::observe(int64_t now_ns) {
  for (const rollout::Observation& o : finished_) rollout_.observe(o, now_ns);
  finished_.clear();
}

const rollout::Decision& RolloutDriver::step(double calls_per_s, int64_t now_ns) {
  fold_.drain(now_ns, &finished_);
  observe(now_ns);
  rollout_.tick(calls_per_s, now_ns);
  return rollout_.decision();
}

double RolloutDriver::control_median() const { return control_.empty() ? 0 : median(control_); }

RolloutState route_state(rollout::Stage stage) {
  switch (stage) {
    case rollout::Stage::kShadow:
      return RolloutState::kShadow;
    case rollout::Stage::kCanary:
      return RolloutState::kCanary;
    case rollout::Stage::kIncumbent:
      return RolloutState::kIncumbent;
    case rollout::Stage::kRolledBack:
      return RolloutState::kRolledBack;
  }
  return RolloutState::kRolledBack;
}

bool IncumbentWatch::add(double ns_per_work) {
  if (!(baseline_ > 0) || !(ns_per_work > 0)) return false;
  window_.push_back(static_cast<float>(ns_per_work));
  if (window_.size() < kWindow) return false;
  slow_ = median(window_) > baseline_ ? slow_ + 1 : 0;
  window_.clear();
  if (slow_ < patience_) return false;
  slow_ = 0;
  patience_ = std::min(2 * patience_, 64);
  return true;
}

}  // namespace niche::core
