// TemplateFamily: a parametric generator of kernels for one operator: a finite schedule space and the source
// text of each of its points.
//
// Families are written beside the operators (runtime/ops/cpu) and handed to evolve/ in a FamilyRegistry:
// evolve/ knows no operator by name. Thread-safety: immutable; const methods may run in several threads.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/definition.h"
#include "dispatch/devices/cuda/cuda_plan.h"
#include "dispatch/kernel.h"

namespace niche::evolve {

struct CudaTarget;  // cuda_template_family.h

// What the generated code will run on. Detected, never assumed.
struct CpuTarget {
  bool avx2 = false;
  bool avx512 = false;  // F, BW, DQ, VL
  bool avx512_bf16 = false;
  int64_t l1d_bytes = 32 << 10;
  int64_t l2_bytes = 512 << 10;
  int64_t l3_bytes = 16 << 20;
  int threads = 1;  // threads a call may use
  // "cuda.sm_90a": code is generated for this device, by families that know it; empty: for this CPU.
  std::string device{};
  // That device's figures: what launches of programs are checked against, and models are told. Null: for this CPU.
  std::shared_ptr<const CudaTarget> cuda{};
};

// One dimension of a schedule space: a name and the values it may take.
struct Param {
  std::string name;
  std::vector<int> values;
};

// A point: one index into Param::values a parameter.
using Point = std::vector<int>;

// The source of one candidate.
struct KernelSource {
  std::string text;  // C++, no #include, cpu_preamble() first; `extern "C"` entries carry the given suffix
  dispatch::LaunchPlan plan;  // symbols as in `text`
  dispatch::KernelProperties properties;
  dispatch::Guard
      limits;  // hard limits of this schedule (multiples, upper bounds); the evaluator clips further
  std::vector<std::string>
      flags;  // beyond the toolchain's own; from its allow-list (for example -fno-trapping-math)
  std::string kernel_name;  // "<op>.<dtype>.<variant>.<params>.<arch>"
  // Of a kernel for a CUDA device: `text` is CUDA C++, and this is how it is launched. Null: C++.
  std::shared_ptr<const dispatch::CudaLaunchPlan> cuda{};
};

class TemplateFamily {
 public:
  virtual ~TemplateFamily() = default;
  virtual const std::string& name() const = 0;  // "rms_norm.rows"
  virtual const std::string& op() const = 0;    // "rms_norm"
  virtual const std::vector<Param>& params() const = 0;

  // Can this point be built for this Definition and target? Some ns to µs; no side effects.
  virtual bool valid(const dispatch::Definition& d, const CpuTarget& t, const Point& point) const = 0;
  // Points worth trying first, best guess first; at least one that is valid wherever any is.
  virtual std::vector<Point> seeds(const dispatch::Definition& d, const CpuTarget& t) const = 0;
  // The source at a valid point. `suffix` makes every external symbol unique ("_k17"); everything else in
  // `text` must live happily inside `namespace niche_k17 { ... }`, since many candidates share one compile.
  virtual KernelSource render(const dispatch::Definition& d, const CpuTarget& t, const Point& point,
                              std::string_view suffix) const = 0;

  // "rows=2 unroll=4": for provenance, logs and deduplication.
  std::string describe(const Point& point) const;
  // Number of valid points (enumerates the space).
  int64_t count_valid(const dispatch::Definition& d, const CpuTarget& t) const;
};

class FamilyRegistry {
 public:
  void add(std::shared_ptr<const TemplateFamily> family) { families_.push_back(std::move(family)); }
  std::vector<const TemplateFamily*> for_op(std::string_view op) const;
  const TemplateFamily* find(std::string_view name) const;
  const std::vector<std::shared_ptr<const TemplateFamily>>& all() const { return families_; }

 private:
  std::vector<std::shared_ptr<const TemplateFamily>> families_;
};

// The preamble every generated source starts with: NicheKernelArgs, vector types f32x8/f32x16 (GCC vector
// extensions), loads and stores for unaligned addresses, bf16 conversion, exp and its kin. Shared by all
// families; see docs/templates.md. A KernelSource's text begins with it, so that a stored source is complete;
// where several candidates share one compile, whoever joins them may move it out in front (it costs 12 ms a
// copy).
std::string_view cpu_preamble();

}  // namespace niche::evolve
