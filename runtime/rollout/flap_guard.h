// FlapGuard: hysteresis between rollouts of one Definition, so that two kernels of about the same speed do
// not take turns.
//
// Rules, each with a stated wait: a new incumbent stays for a while before it may be challenged (2 s, doubled
// for each change within the last ten minutes, at most ten minutes); a kernel that was not proven waits five
// minutes, doubled each time, and after three attempts only a new verdict brings it back; an incumbent that
// lost its place waits ten minutes. Rollbacks themselves are never delayed.
//
// Thread-safety: one owner. Pure: time is given. Bound: kKernelsMax kernels remembered, the longest silent
// forgotten first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>

#include "runtime/rollout/rollout.h"

namespace niche::rollout {

class FlapGuard {
 public:
  static constexpr size_t kKernelsMax = 1024;
  static constexpr int kAttemptsMax = 3;

  struct Answer {
    bool allowed = true;
    int64_t not_before_ns = 0;  // 0 with !allowed: not before a new verdict
    std::string reason;
  };
  Answer may_challenge(uint64_t kernel, int64_t now_ns) const;

  void promoted(uint64_t kernel, int64_t now_ns);
  void rolled_back(uint64_t kernel, Cause cause, int64_t now_ns);
  // Verified again, or new code under its name: a clean slate.
  void new_verdict(uint64_t kernel) { kernels_.erase(kernel); }
  int64_t dwell_ns(int64_t now_ns) const;  // how long an incumbent that came now would stay unchallenged

 private:
  struct Memory {
    int attempts = 0;  // that ended not proven
    int64_t not_before_ns = 0, last_ns = 0;
    bool was_incumbent = false;
    std::string reason;
  };
  Memory& remember(uint64_t kernel, int64_t now_ns);

  std::unordered_map<uint64_t, Memory> kernels_;
  std::deque<int64_t> changes_;  // times of promotions, the last 16
  int64_t settled_at_ns_ = 0;    // the incumbent may be challenged from here on
};

}  // namespace niche::rollout
