// ReuseTracker: in which cache state do the calls of a site find their data?
//
// A site whose next call comes after more bytes were touched than the last-level cache holds finds its
// weights evicted: "cold". The evaluator judges kernels in the state that live calls are in
// (docs/evaluation.md), so a wrong answer here picks the wrong winner: answers have hysteresis, and "unknown" until enough
// was seen.
//
// Thread-safety: one owner. Pure: time is given. Bound: `sites_max` sites; past that, new ones stay unknown
// (counted).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "runtime/telemetry/heavy_hitters.h"

namespace niche::telemetry {

enum class CacheState : uint8_t { kUnknown = 0, kWarm, kCold };

// What one site did in one interval of aggregation.
struct SiteInterval {
  uint32_t site = 0;
  int64_t calls = 0;
  double bytes = 0;  // touched by those calls, all together
};

class ReuseTracker {
 public:
  struct Options {
    double llc_bytes = 16 << 20;
    int64_t half_life_ns = int64_t{30} * 1'000'000'000;
    size_t sites_max = 4096;
    double calls_min = 8;  // decayed calls before an answer
    double cold_above = 0.6,
           warm_below = 0.4;  // share of calls that came back cold: the gap is the hysteresis
  };
  explicit ReuseTracker(const Options& options);

  // One measured gap: bytes touched on this device between two calls of the site.
  void observe_gap(uint32_t site, double bytes, double calls, int64_t now_ns);
  // Estimate from totals, where gaps are not measured: with n calls of a site among B bytes touched in all, a
  // call comes back after B / n bytes on average. `sites` must be everything that ran on the device in that
  // interval.
  void observe_interval(std::span<const SiteInterval> sites, int64_t now_ns);

  CacheState state(uint32_t site) const;
  double cold_share(uint32_t site) const;  // of the site's recent calls; 0 when unknown
  size_t sites() const { return sites_.size(); }
  uint64_t untracked() const { return untracked_; }

 private:
  struct Site {
    double calls = 0, cold = 0;  // stored units
    CacheState state = CacheState::kUnknown;
  };
  Options options_;
  ForwardDecay decay_;
  std::unordered_map<uint32_t, Site> sites_;
  uint64_t untracked_ = 0;
};

}  // namespace niche::telemetry
