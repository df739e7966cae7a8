// CudaTemplateFamily: a parametric generator of CUDA C++ kernels for one operator: a finite schedule space
// and the source text of each of its points. The GPU's counterpart of template_family.h; Param and Point are
// the same, so that the search policies serve both.
//
// Families are written beside the operators (runtime/ops/cuda). Thread-safety: immutable; const methods may
// run in several threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/devices/cuda/cuda_plan.h"
#include "evolve/template_family.h"

namespace niche::evolve {

// What the generated code will run on: CudaInfo's figures on a machine with a GPU, or those of a named
// architecture where one compiles for another machine.
struct CudaTarget {
  std::string arch = "sm_90a";  // what NVRTC compiles for
  int capability = 90;          // 80, 90, 100
  int sm_count = 132;
  int shared_bytes_per_block = 232448;
  int shared_bytes_per_sm = 233472;
  int threads_per_sm = 2048;
  int64_t l2_bytes = int64_t{60} << 20;

  // "sm_80" as on an A100, "sm_90a" as on an H200, "sm_100a" as on a B200. Requires: one of these.
  static CudaTarget named(std::string_view arch);
};

// The source of one candidate.
struct CudaKernelSource {
  std::string text;  // CUDA C++ without #include; `extern "C" __global__` entries as in `plan`
  dispatch::CudaLaunchPlan plan;
  dispatch::KernelProperties properties;
  dispatch::Guard limits;   // hard limits of this schedule; the evaluator clips further
  std::string kernel_name;  // "<op>.<dtype>.<variant>.<params>.<arch>"
};

class CudaTemplateFamily {
 public:
  virtual ~CudaTemplateFamily() = default;
  virtual const std::string& name() const = 0;  // "rms_norm.rows"
  virtual const std::string& op() const = 0;    // "rms_norm"
  virtual const std::vector<Param>& params() const = 0;
  // Can this point be built for this Definition and target? Some ns to µs; no side effects.
  virtual bool valid(const dispatch::Definition& d, const CudaTarget& t, const Point& point) const = 0;
  // Points worth trying first, best guess first; at least one that is valid wherever any is.
  virtual std::vector<Point> seeds(const dispatch::Definition& d, const CudaTarget& t) const = 0;
  virtual CudaKernelSource render(const dispatch::Definition& d, const CudaTarget& t,
                                  const Point& point) const = 0;

  std::string describe(const Point& point) const;  // "vec=8 threads=256"
  int64_t count_valid(const dispatch::Definition& d, const CudaTarget& t) const;
};

// What every CUDA source starts with (cuda_preamble.cc): the parameter Args, 16-bit types, vectors, cp.async, bulk copies,
// tensor cores. NVRTC is given no headers, so a source has this and what it writes itself.
std::string_view cuda_preamble();

class CudaFamilyRegistry {
 public:
  void add(std::shared_ptr<const CudaTemplateFamily> family) { families_.push_back(std::move(family)); }
  std::vector<const CudaTemplateFamily*> for_op(std::string_view op) const;
  const std::vector<std::shared_ptr<const CudaTemplateFamily>>& all() const { return families_; }

 private:
  std::vector<std::shared_ptr<const CudaTemplateFamily>> families_;
};

}  // namespace niche::evolve
