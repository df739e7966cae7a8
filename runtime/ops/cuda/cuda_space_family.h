// CudaSpaceFamily: what the CUDA families have in common: a parameter list with access by name, seeds written
// as name=value, a builder for the source text, and the parameter `chain`.
//
// chain=1 (sm_90 on): every launch is a programmatic dependent one, and every kernel touches
// memory only when the one before it has ended, and lets the next one start when all its blocks have come so far. So a launch's latency lies under the
// kernel before it, whoever launched that.
//
// Thread-safety: immutable after construction. Cost: rendering is some µs of string building.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "evolve/cuda_template_family.h"

namespace niche::ops_cuda {

using dispatch::Definition;
using evolve::CudaKernelSource;
using evolve::CudaTarget;
using evolve::Param;
using evolve::Point;

class CudaSpaceFamily : public evolve::CudaTemplateFamily {
 public:
  const std::string& name() const override { return name_; }
  const std::string& op() const override { return op_; }
  const std::vector<Param>& params() const override { return params_; }
  std::vector<Point> seeds(const Definition& d, const CudaTarget& t) const override;
  bool valid(const Definition& d, const CudaTarget& t, const Point& point) const override;
  CudaKernelSource render(const Definition& d, const CudaTarget& t, const Point& point) const final;

 protected:
  using Settings = std::vector<std::pair<std::string_view, int>>;

  class View {
   public:
    View(const CudaSpaceFamily& family, const Point& point) : family_(family), point_(point) {}
    int operator[](std::string_view name) const;

   private:
    const CudaSpaceFamily& family_;
    const Point& point_;
  };

  CudaSpaceFamily(std::string name, std::string op, std::vector<Param> params);  // and `chain`
  // The kernel of a point, but for `chain`.
  virtual CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const = 0;
  // The family's own rules; called for points whose indices are in range.
  virtual bool allowed(const Definition& d, const CudaTarget& t, const View& v) const = 0;
  // Good starting points; a parameter left out takes its first value, a value that the parameter does not
  // list makes the seed vanish.
  virtual std::vector<Settings> seed_points(const Definition& d, const CudaTarget& t) const = 0;
  // "rms_norm.f32.rows.vec4_threads256.sm_90a"
  std::string kernel_name(const Definition& d, const CudaTarget& t, const Point& point) const;

 private:
  std::string name_, op_;
  std::vector<Param> params_;
};

// The text of one candidate: preamble, constants, body.
class CudaSource {
 public:
  CudaSource();
  CudaSource& let(std::string_view name, int64_t value);       // an enumerator
  CudaSource& let_float(std::string_view name, double value);  // a macro
  CudaSource& type(std::string_view name, std::string_view what);
  CudaSource& body(std::string_view text);
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

using evolve::cuda_preamble;

// "float", "f16" or "bf16": the preamble's name of the Definition's element type.
std::string_view element(const Definition& d);
int element_bytes(const Definition& d);
// Can a multiprocessor hold so many blocks (0: the grid is not persistent) of so many threads and bytes of shared memory?
bool fits(const CudaTarget& t, int64_t threads, int64_t shared_bytes, int64_t blocks);
// No limit on any variable axis but int32; pointers aligned to `alignment`.
dispatch::Guard any_problem(const Definition& d, int alignment);

}  // namespace niche::ops_cuda
