// PermitSpan: one permit over as many steps of work as fit into it. A grant takes two or three processes' messages, a
// step often less time than those: so a permit is kept while the next step fits into what is left of it.
//
// Pure: time is given. Invariant: a step that is begun under a permit ends before the permit does, unless it takes
// longer than it was expected to, or longer than a whole permit. Thread-safety: one owner.
#pragma once

#include <cstdint>

namespace niche::evolve {

class PermitSpan {
 public:
  bool held() const { return held_; }
  bool fits(int64_t needs_ns, int64_t now_ns) const { return held_ && needs_ns <= left(now_ns); }
  // Of the permit, from now on.
  int64_t left(int64_t now_ns) const { return held_ ? granted_ns_ - (now_ns - since_ns_) : 0; }

  void take(int64_t granted_ns, int64_t now_ns) {
    held_ = true;
    granted_ns_ = granted_ns;
    since_ns_ = now_ns;
    used_ns_ = 0;
  }
  void begin(int64_t now_ns) { began_ns_ = now_ns; }
  void end(int64_t now_ns) { used_ns_ += now_ns - began_ns_; }
  // The permit is no longer held; how long the device worked under it.
  int64_t give_back() {
    held_ = false;
    return used_ns_;
  }

 private:
  bool held_ = false;
  int64_t granted_ns_ = 0, since_ns_ = 0, began_ns_ = 0, used_ns_ = 0;
};

}  // namespace niche::evolve
