// ResidentKernel: a verified kernel of the cache, loaded in this process, with what its Verdict measured.
//
// Thread-safety: immutable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dispatch/published_kernel.h"
#include "evolve/verdict.h"
#include "kernels_cache/standing.h"

namespace niche::core {

struct ResidentKernel {
  kernels_cache::KernelRef ref;
  std::shared_ptr<const dispatch::Kernel> kernel;
  uint32_t definition = 0;
  std::string fallback_name;  // the library form it was compared with
  double fallback_ns = 0, kernel_ns = 0;
  std::vector<evolve::PointTiming> timing;
  int64_t served_calls = 0;  // before this process
  bool proven = false;       // has served its probation
  int64_t code_bytes = 0;
  int64_t verified_unix_ns = 0;  // its Verdict

  uint64_t id() const { return kernel->id; }
  // Gain over the best library form that may be counted on at a problem: that of the nearest measured point
  // (distance in log2 of the axes), less dispatch::NichePolicy's far_margin where the point lies further off
  // than its gap_max; of the record as a whole where no point was kept.
  double gain(const int64_t* var_axes, int count) const;
  // Gains so much at every point that it was measured at that it may be counted on anywhere in its Guard.
  bool reaches_far() const;
  // Timed at this very problem.
  bool measured_at(const int64_t* var_axes, int count) const;
  // The point that gain() took; null: none.
  const evolve::PointTiming* nearest(const int64_t* var_axes, int count) const;

 private:
  double record_gain() const;
};

}  // namespace niche::core
