#include "runtime/rollout/request_fold.h"

#include <cmath>

namespace niche::rollout {

void RequestFold::add(uint64_t request, Arm arm, double log_ratio, double ns, int64_t now_ns,
                      std::vector<Observation>* out) {
  if (!(ns > 0) || !std::isfinite(ns) || !std::isfinite(log_ratio)) return;
  if (request == 0) {
    out->push_back({arm, log_ratio});
    return;
  }
  drain(now_ns, out);
  auto it = where_.find(request);
  if (it == where_.end()) {
    if (open_.size() >= open_max_) finish(open_.begin(), out);
    open_.push_back({request, arm, 0, 0, now_ns, false});
    it = where_.emplace(request, std::prev(open_.end())).first;
  } else {
    open_.splice(open_.end(), open_, it->second);
  }
  Open& o = *it->second;
  o.mixed |= o.arm != arm;
  o.ns += ns;
  o.predicted += ns / std::exp(log_ratio);
  o.last_ns = now_ns;
}

void RequestFold::close(uint64_t request, std::vector<Observation>* out) {
  if (const auto it = where_.find(request); it != where_.end()) finish(it->second, out);
}

void RequestFold::drain(int64_t now_ns, std::vector<Observation>* out) {
  while (!open_.empty() && open_.front().last_ns <= now_ns - idle_ns_) finish(open_.begin(), out);
}

void RequestFold::finish(Place at, std::vector<Observation>* out) {
  if (!at->mixed) out->push_back({at->arm, std::log(at->ns / at->predicted)});
  where_.erase(at->request);
  open_.erase(at);
}

}  // namespace niche::rollout
