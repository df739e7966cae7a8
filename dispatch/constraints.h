// ConstraintSet: what one call demands of the kernel that serves it, in seven bits of the ProblemKey.
//
// A call without demands may be served by any kernel of its route. Two calls that differ in their demands
// have different keys, so that the publisher checks properties once and the hot path never does.
//
// Thread-safety: a value. Cost: none; constant expressions.
#pragma once

#include <cstdint>

#include "dispatch/kernel.h"

namespace niche::dispatch {

// The largest workspace a call tolerates, by class (an exact limit would not fit the key).
enum class WorkspaceLimit : uint8_t { kAny = 0, kAtMost64MiB = 1, kAtMost1MiB = 2, kNone = 3 };

class ConstraintSet {
 public:
  constexpr ConstraintSet() = default;
  static constexpr ConstraintSet from_bits(uint8_t bits) { return ConstraintSet(bits & kMask); }
  constexpr uint8_t bits() const { return bits_; }

  constexpr ConstraintSet deterministic() const { return ConstraintSet(bits_ | kDeterministic); }
  constexpr ConstraintSet batch_invariant() const { return ConstraintSet(bits_ | kBatchInvariant); }
  constexpr ConstraintSet capturable() const { return ConstraintSet(bits_ | kCapturable); }
  constexpr ConstraintSet f32_accumulate() const { return ConstraintSet(bits_ | kF32Accumulate); }
  constexpr ConstraintSet workspace(WorkspaceLimit limit) const {
    return ConstraintSet((bits_ & ~kWorkspaceMask) | static_cast<uint8_t>(limit) << kWorkspaceShift);
  }
  constexpr ConstraintSet operator|(ConstraintSet o) const {
    // The stricter limit of the two: classes are ordered.
    const uint8_t ws = bits_ & kWorkspaceMask, ows = o.bits_ & kWorkspaceMask;
    return ConstraintSet(((bits_ | o.bits_) & ~kWorkspaceMask) | (ws > ows ? ws : ows));
  }
  constexpr bool operator==(const ConstraintSet&) const = default;

  constexpr int64_t workspace_bytes_max() const {
    constexpr int64_t kBytes[4] = {INT64_MAX, int64_t{64} << 20, int64_t{1} << 20, 0};
    return kBytes[(bits_ & kWorkspaceMask) >> kWorkspaceShift];
  }
  // May a kernel with these properties and workspace serve the call?
  constexpr bool met_by(const KernelProperties& p, int64_t workspace_bytes) const {
    return (!(bits_ & kDeterministic) || p.deterministic) &&
           (!(bits_ & kBatchInvariant) || p.batch_invariant) && (!(bits_ & kCapturable) || p.capturable) &&
           (!(bits_ & kF32Accumulate) || p.f32_accumulate) && workspace_bytes <= workspace_bytes_max();
  }

 private:
  static constexpr uint8_t kDeterministic = 1, kBatchInvariant = 2, kCapturable = 4, kF32Accumulate = 8;
  static constexpr uint8_t kWorkspaceShift = 4, kWorkspaceMask = 3 << kWorkspaceShift, kMask = 0x7f;
  constexpr explicit ConstraintSet(int bits) : bits_(static_cast<uint8_t>(bits)) {}
  uint8_t bits_ = 0;
};

}  // namespace niche::dispatch
