#include "evolve/probe/duty_governor.h"

#include <algorithm>

namespace niche::evolve {
namespace {

constexpr double kSlowUp = 1.0986122886681;  // log(3 % / 1 %)
constexpr double kSlowDown = 0.0204089;      // log(99 % / 97 %)

}  // namespace

void DutyGovernor::add(double ns, double quiet_p99_ns, int64_t now_ns) {
  if (quiet_p99_ns <= 0 || options_.ceiling <= options_.floor) return;
  const bool slow = ns > options_.slack * quiet_p99_ns;
  cusum_ = std::max(0.0, cusum_ + (slow ? kSlowUp : -kSlowDown));
  ++requests_;
  slow_ += slow;
  if (cusum_ >= options_.alarm) {
    ++falls_;
    cap_ = std::max(options_.floor, duty_ / options_.rise);
    capped_at_ns_ = now_ns;
    duty_ = options_.floor;
    cusum_ = 0;
    requests_ = slow_ = 0;
    return;
  }
  if (cap_ < options_.ceiling && now_ns - capped_at_ns_ >= options_.cap_ns) {
    cap_ = std::min(options_.ceiling, cap_ * options_.rise);
    capped_at_ns_ = now_ns;
  }
  if (requests_ < options_.window) return;
  if (slow_ <= options_.slow_max * requests_) duty_ = std::min(cap_, duty_ * options_.rise);
  requests_ = slow_ = 0;
}

}  // namespace niche::evolve
