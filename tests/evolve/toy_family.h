// ToyFamily: real, compilable kernels of ToyOp over a small schedule space. The parameter "tag" changes
// nothing in the source: its points are duplicates by construction.
#pragma once

#include <string>

#include "evolve/template_family.h"

namespace niche::evolve::testing_ops {

class ToyFamily final : public TemplateFamily {
 public:
  explicit ToyFamily(std::string name = "toy.rows") : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  const std::string& op() const override { return op_; }
  const std::vector<Param>& params() const override { return params_; }
  bool valid(const dispatch::Definition& d, const CpuTarget&, const Point& p) const override {
    return d.const_extents()[1] % value(p, 1) == 0;
  }
  std::vector<Point> seeds(const dispatch::Definition&, const CpuTarget&) const override {
    return {Point(params_.size(), 0)};
  }
  KernelSource render(const dispatch::Definition& d, const CpuTarget&, const Point& p,
                      std::string_view suffix) const override {
    const std::string rows = std::to_string(value(p, 0)), unroll = std::to_string(value(p, 1));
    const std::string symbol = "toy" + std::string(suffix);
    const bool bias = d.attr("has_b") != 0;
    KernelSource s;
    s.text = std::string(cpu_preamble()) + "\nextern \"C\" void " + symbol +
             "(const NicheKernelArgs* a, long begin, long end) noexcept {\n"
             "  const float* x = (const float*)a->p[0];\n  const float* w = (const float*)a->p[1];\n"
             "  const float* b = (const float*)a->p[2];\n  float* y = (float*)a->p[3];\n"
             "  const long m = a->n[0], n = a->n[1];\n"
             "  for (long i = begin * " +
             rows + "; i < m && i < end * " + rows + "; ++i)\n" +
             (value(p, 2) != 0 ? "    for (long j = n - " + unroll + "; j >= 0; j -= " + unroll + ") {\n"
                               : "    for (long j = 0; j < n; j += " + unroll + ") {\n");
    for (int k = 0; k < value(p, 1); ++k) {
      const std::string j = "j + " + std::to_string(k);
      s.text += "      { float v = x[i * n + " + j + "] * w[" + j + "]" + (bias ? " + b[" + j + "]" : "") +
                "; y[i * n + " + j + "] = v > 0 ? v : 0; }\n";
    }
    s.text += "    }\n}\n";
    s.plan.phases = {{symbol, {{0, value(p, 0)}}, 2}};
    s.limits.var_count = 1;
    s.limits.var[0] = {1, int64_t{1} << 30, 1};
    s.kernel_name =
        "toy_affine_relu.f32.rows.r" + rows + "_u" + unroll + (value(p, 2) != 0 ? "_back" : "") + ".base";
    return s;
  }
  int value(const Point& p, size_t i) const { return params_[i].values[static_cast<size_t>(p[i])]; }

 private:
  std::string name_, op_ = "toy_affine_relu";
  std::vector<Param> params_{
      {"rows", {1, 2, 4, 8, 16}}, {"unroll", {1, 2, 4, 8, 16, 32}}, {"back", {0, 1}}, {"tag", {0, 1, 2}}};
};

}  // namespace niche::evolve::testing_ops
