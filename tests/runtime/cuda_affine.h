// The operator of affine_op.h on the fake driver: a family of CUDA kernels for it (their text is compiled by
// NVRTC, what they do stands here), and what launches and library forms take on the fake device's clock.
#pragma once

#include <cstring>

#include "dispatch/devices/cuda/cuda_plan.h"
#include "evolve/cuda_template_family.h"
#include "tests/dispatch/devices/cuda/fake_driver.h"
#include "tests/runtime/affine_op.h"

namespace niche::testing_ops {

inline constexpr double kLibraryUs = 20, kFastUs = 5, kSlowUs = 60, kProgramUs = 2;
// By variant, as the parameter has them.
inline const std::vector<std::string>& variants() {
  static const std::vector<std::string> names = {"affine_slow", "affine_wrong", "affine_past_end",
                                                 "affine_fast"};
  return names;
}

class AffineCudaFamily final : public evolve::CudaTemplateFamily {
 public:
  const std::string& name() const override { return name_; }
  const std::string& op() const override { return op_; }
  const std::vector<evolve::Param>& params() const override { return params_; }
  bool valid(const Definition&, const evolve::CudaTarget&, const evolve::Point&) const override {
    return true;
  }
  std::vector<evolve::Point> seeds(const Definition&, const evolve::CudaTarget&) const override {
    return {{0}};
  }
  evolve::CudaKernelSource render(const Definition&, const evolve::CudaTarget& t,
                                  const evolve::Point& point) const override {
    const std::string& symbol = variants()[static_cast<size_t>(point[0])];
    evolve::CudaKernelSource s;
    s.text =
        "struct Args { void* p[12]; long long n[12]; void* ws; const void* packed; unsigned blocks[4]; };\n"
        "extern \"C\" __global__ void " +
        symbol +
        "(const __grid_constant__ Args a) {\n"
        "  if (threadIdx.x < a.n[0]) ((float*)a.p[3])[threadIdx.x] = 1.0f;\n}\n";
    s.plan.phases = {{symbol, {{0, 4}}, 128, 0, 0, 1, false}};
    s.limits.var_count = 1;
    s.limits.var[0] = {1, 1 << 20, 1};
    s.limits.alignment_bytes = 4;
    s.kernel_name = "affine.f32." + symbol.substr(7) + "." + t.arch;
    return s;
  }

 private:
  std::string name_ = "affine.rows", op_ = "affine";
  std::vector<evolve::Param> params_ = {{"variant", {0, 1, 2, 3}}};
};

// What the kernels do in this process.
inline void teach_fake_device() {
  auto& s = fake_cuda::state();
  const auto affine = [](const fake_cuda::Launch& l, float off) {
    NicheCudaArgs a;
    std::memcpy(&a, l.parameter.data(), sizeof a);
    const auto *x = static_cast<const float*>(a.p[0]), *w = static_cast<const float*>(a.p[1]),
               *b = static_cast<const float*>(a.p[2]);
    const long long elements = a.n[0] * a.n[1];
    for (long long i = 0; i < elements; ++i)
      static_cast<float*>(a.p[3])[i] = x[i] * w[i % a.n[1]] + b[i % a.n[1]] + off;
    return a;
  };
  s.bodies = {
      {"affine_fast", [=](const fake_cuda::Launch& l) { affine(l, 0); }},
      {"affine_program", [=](const fake_cuda::Launch& l) { affine(l, 0); }},
      {"affine_slow", [=](const fake_cuda::Launch& l) { affine(l, 0); }},
      {"affine_wrong", [=](const fake_cuda::Launch& l) { affine(l, 1); }},
      {"affine_past_end",
       [=](const fake_cuda::Launch& l) {
         const NicheCudaArgs a = affine(l, 0);
         if (a.n[0] > 0) static_cast<float*>(a.p[3])[a.n[0] * a.n[1]] = 1;
       }},
  };
  s.symbols = {"pace", "affine_program"};
  for (const std::string& v : variants()) s.symbols.insert(v);
  s.cost_us = {{"pace", 50},
               {"affine_fast", kFastUs},
               {"affine_program", kProgramUs},
               {"affine_slow", kSlowUs},
               {"affine_wrong", kFastUs},
               {"affine_past_end", kFastUs}};
  s.launches_max = 1000;
}

}  // namespace niche::testing_ops
