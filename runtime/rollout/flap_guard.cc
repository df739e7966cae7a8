#include "runtime/rollout/flap_guard.h"

#include <algorithm>

namespace niche::rollout {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kWindow = 600 * kSecond;
constexpr int64_t kDwellFirst = 2 * kSecond, kDwellMax = 600 * kSecond;
constexpr int64_t kNotProvenWait = 300 * kSecond;
constexpr int64_t kDemotedWait = 600 * kSecond;
constexpr size_t kChangesKept = 16;

}  // namespace

int64_t FlapGuard::dwell_ns(int64_t now_ns) const {
  const auto recent =
      std::count_if(changes_.begin(), changes_.end(), [&](int64_t t) { return t > now_ns - kWindow; });
  int64_t dwell = kDwellFirst;
  for (std::ptrdiff_t i = 0; i < recent && dwell < kDwellMax; ++i) dwell *= 2;
  return std::min(dwell, kDwellMax);
}

FlapGuard::Answer FlapGuard::may_challenge(uint64_t kernel, int64_t now_ns) const {
  if (const auto it = kernels_.find(kernel); it != kernels_.end()) {
    if (it->second.attempts >= kAttemptsMax)
      return {false, 0,
              "not proven in " + std::to_string(kAttemptsMax) + " rollouts: waits for a new verdict"};
    if (now_ns < it->second.not_before_ns) return {false, it->second.not_before_ns, it->second.reason};
  }
  if (now_ns < settled_at_ns_) return {false, settled_at_ns_, "the incumbent is new"};
  return {};
}

FlapGuard::Memory& FlapGuard::remember(uint64_t kernel, int64_t now_ns) {
  if (kernels_.size() >= kKernelsMax && !kernels_.contains(kernel)) {
    const auto oldest = std::min_element(kernels_.begin(), kernels_.end(), [](const auto& a, const auto& b) {
      return a.second.last_ns < b.second.last_ns;
    });
    kernels_.erase(oldest);
  }
  Memory& m = kernels_[kernel];
  m.last_ns = now_ns;
  return m;
}

void FlapGuard::promoted(uint64_t kernel, int64_t now_ns) {
  settled_at_ns_ = now_ns + dwell_ns(now_ns);
  changes_.push_back(now_ns);
  if (changes_.size() > kChangesKept) changes_.pop_front();
  Memory& m = remember(kernel, now_ns);
  m.was_incumbent = true;
  m.attempts = 0;
}

void FlapGuard::rolled_back(uint64_t kernel, Cause cause, int64_t now_ns) {
  Memory& m = remember(kernel, now_ns);
  if (m.was_incumbent) {
    m.was_incumbent = false;
    m.not_before_ns = now_ns + kDemotedWait;
    m.reason = "lost its place";
  }
  if (cause == Cause::kNotProven) {
    m.not_before_ns = std::max(m.not_before_ns, now_ns + (kNotProvenWait << m.attempts));
    m.reason = "not proven on live traffic";
    ++m.attempts;
  }
}

}  // namespace niche::rollout
