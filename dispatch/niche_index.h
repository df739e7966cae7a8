// NicheIndex: Definition → regions of its variable axes → Route: who serves a shape that no call has had
// before.
//
// A region is a box (a Guard) in one context (Definition, tenant, device, threads). It never reaches beyond
// what its kernels were verified on: the publisher refuses a region whose box is not inside every kernel's
// Guard, and every real shape is still checked (layout, demands, multiples) after the box was hit.
//
// Roles: built by the publisher, part of the published Snapshot; read by serving threads on a miss.
// Invariants: (1) immutable; (2) regions of one Definition are tried in the order of their priority, then of
// their age;
//   (3) at most kRegionsMax a Definition.
// Progress: wait-free. Reclamation: with the Snapshot. Cost: 2 ns where a Definition has no region, about 2
// ns a region tried. Why not simpler: a hash of power-of-two buckets cannot say where one kernel's verified
// box ends; an interval tree pays
//   for itself only past some fifty regions, and no Definition seen so far has ten.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dispatch/base/status.h"
#include "dispatch/problem_key.h"
#include "dispatch/route.h"

namespace niche::dispatch {

struct RegionSpec {
  KeyPrefix prefix;  // constraints are ignored: each call's own demands are asked of the kernels
  Guard box;         // var_count must be the Definition's
  std::shared_ptr<Route> route;
  int priority = 0;  // higher first
};

class NicheIndex {
 public:
  static constexpr int kRegionsMax = 64;

  struct Region {
    uint64_t context = 0;  // ProblemKey::context()
    int64_t lo[kMaxVarAxes] = {}, hi[kMaxVarAxes] = {};
    Guard box;
    const Route* route = nullptr;
    uint64_t id = 0;
    int priority = 0;
    bool contains(const int64_t* axes) const {
      bool in = true;
      for (int i = 0; i < kMaxVarAxes; ++i) in &= axes[i] >= lo[i] && axes[i] <= hi[i];
      return in;
    }
  };

  // Regions of a Definition, in the order to try them. Null where there are none.
  const std::vector<Region>* of(uint32_t definition) const {
    return definition < by_definition_.size() ? by_definition_[definition].get() : nullptr;
  }
  size_t size() const;

  // Copies with one change. Regions of other Definitions are shared with the original.
  // kInvalid: the box is empty, of another arity, or not inside a kernel's Guard. kBusy: kRegionsMax reached.
  static Result<std::shared_ptr<const NicheIndex>> with(const NicheIndex& base, const RegionSpec& spec,
                                                        uint64_t id);
  static std::shared_ptr<const NicheIndex> without(const NicheIndex& base,
                                                   uint64_t id);  // no such id: a plain copy

 private:
  std::vector<std::shared_ptr<const std::vector<Region>>> by_definition_;
};

// Is every problem of `inner` one of `outer`?
bool guard_inside(const Guard& inner, const Guard& outer);

}  // namespace niche::dispatch
