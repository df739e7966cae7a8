#include "runtime/telemetry/reuse.h"

namespace niche::telemetry {

ReuseTracker::ReuseTracker(const Options& options) : options_(options), decay_(options.half_life_ns) {}

void ReuseTracker::observe_gap(uint32_t site, double bytes, double calls, int64_t now_ns) {
  if (!(calls > 0) || !(bytes >= 0)) return;
  const double factor = decay_.advance(now_ns);
  if (factor != 1)
    for (auto& [id, s] : sites_) s.calls *= factor, s.cold *= factor;
  auto it = sites_.find(site);
  if (it == sites_.end()) {
    if (sites_.size() >= options_.sites_max) {
      ++untracked_;
      return;
    }
    it = sites_.emplace(site, Site{}).first;
  }
  Site& s = it->second;
  const double unit = decay_.stored_per_unit();
  s.calls += calls * unit;
  if (bytes > options_.llc_bytes) s.cold += calls * unit;
  if (s.calls < options_.calls_min * unit) return;
  const double share = s.cold / s.calls;
  if (share >= options_.cold_above)
    s.state = CacheState::kCold;
  else if (share <= options_.warm_below)
    s.state = CacheState::kWarm;
  else if (s.state == CacheState::kUnknown)
    s.state = share >= 0.5 ? CacheState::kCold : CacheState::kWarm;
}

void ReuseTracker::observe_interval(std::span<const SiteInterval> sites, int64_t now_ns) {
  double total = 0;
  for (const SiteInterval& s : sites)
    if (s.bytes > 0) total += s.bytes;
  for (const SiteInterval& s : sites)
    if (s.calls > 0)
      observe_gap(s.site, total / static_cast<double>(s.calls), static_cast<double>(s.calls), now_ns);
}

CacheState ReuseTracker::state(uint32_t site) const {
  const auto it = sites_.find(site);
  return it == sites_.end() ? CacheState::kUnknown : it->second.state;
}

double ReuseTracker::cold_share(uint32_t site) const {
  const auto it = sites_.find(site);
  return it == sites_.end() || it->second.calls <= 0 ? 0 : it->second.cold / it->second.calls;
}

}  // namespace niche::telemetry
