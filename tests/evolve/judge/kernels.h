// Hand-written kernels of test_norm: a right one, and ways to be wrong.
#pragma once

#include <string>

#include "evolve/evaluator.h"

namespace niche::evolve::test_ops {

inline const char* const kNormHead =
    "struct NicheKernelArgs { void* const* p; const long* n; const double* a; void* ws; const void* packed; "
    "};\n"
    "typedef float f8 __attribute__((vector_size(32), aligned(4), may_alias));\n";

// One row: the part that variants replace is `body`, with x, w, y, n, eps in scope; `i` is the row.
inline std::string norm_kernel(const std::string& body, const std::string& suffix = "",
                               const std::string& outside = "") {
  return std::string(kNormHead) + outside + "extern \"C\" void norm" + suffix +
         "(const NicheKernelArgs* k, long begin, long end) noexcept {\n"
         "  const long n = k->n[1]; const float eps = (float)k->a[0];\n"
         "  for (long i = begin; i < end; ++i) {\n"
         "    const float* x = (const float*)k->p[0] + i * n; const float* w = (const float*)k->p[1];\n"
         "    float* y = (float*)k->p[2] + i * n; (void)eps;\n" +
         body + "\n  }\n}\n";
}

inline const char* const kRightBody =
    "    f8 acc = {}; long j = 0; for (; j + 8 <= n; j += 8) { f8 v = *(const f8*)(x + j); acc += v * v; }\n"
    "    float sum = 0; for (int l = 0; l < 8; ++l) sum += acc[l]; for (; j < n; ++j) sum += x[j] * x[j];\n"
    "    const float scale = 1 / __builtin_sqrtf(sum / n + eps);\n"
    "    for (j = 0; j + 8 <= n; j += 8) *(f8*)(y + j) = *(const f8*)(x + j) * scale * *(const f8*)(w + j);\n"
    "    for (; j < n; ++j) y[j] = x[j] * scale * w[j];\n";

inline Candidate norm_candidate(const std::string& text, const std::string& suffix = "") {
  Candidate c;
  c.id = "test" + suffix;
  c.source.text = text;
  c.source.plan.phases = {{"norm" + suffix, {{0, 1}}, 64}};
  c.source.limits.alignment_bytes = 4;
  c.source.kernel_name = "test_norm.f32.hand" + suffix;
  return c;
}

}  // namespace niche::evolve::test_ops
