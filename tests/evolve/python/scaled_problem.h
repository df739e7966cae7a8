// A problem to put to a Python reference: y (M, N) = x * w * gain, total (M, f32) updated in place by the sum of x,
// count (M, i64).
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "evolve/python/python_reference.h"

namespace niche::evolve::python::test {

using namespace dispatch;  // NOLINT: a test's vocabulary

inline constexpr const char* kScaledSource = R"(
import torch

@torch.no_grad()
def run(x, w, total, gain, shift: int):
    total += x.sum(-1)
    return {"count": (x > 0).sum(-1) + shift, "y": x * w * gain}
)";

inline std::shared_ptr<const OpSchema> scaled_schema() {
  auto s = std::make_shared<OpSchema>();
  s->op = "scaled";
  s->axes = {{"M", AxisKind::kVar}, {"N", AxisKind::kConst}};
  s->args = {{"x", ArgRole::kIn, "T", {0, 1}},
             {"w", ArgRole::kIn, "T", {1}},
             {"total", ArgRole::kInOut, "T", {0}},
             {"y", ArgRole::kOut, "T", {0, 1}},
             {"count", ArgRole::kOut, "i64", {0}}};
  s->attrs = {{"gain", 2.5}, {"shift", 3}};
  s->dtypes = {"f32"};
  return s;
}

// One call: inputs, and room for what the reference gives of them.
struct ScaledCall {
  explicit ScaledCall(int64_t rows, int64_t columns = 4, double shift = 3) {
    const auto schema = scaled_schema();
    auto d = Definition::make(schema, kF32, {{"N", columns}}, {{"shift", shift}});
    EXPECT_TRUE(d.ok()) << d.status().to_string();
    problem.definition = *d;
    problem.axes[0] = rows, problem.axes[1] = columns;
    for (size_t i = 0; i < shapes.size(); ++i) shapes[i] = problem.arg_shape(static_cast<int>(i));
    for (int64_t i = 0; i < rows * columns; ++i) x.push_back(static_cast<float>(i % 7) - 2);
    for (int64_t i = 0; i < columns; ++i) w.push_back(0.1f * static_cast<float>(i + 1));
    total.assign(static_cast<size_t>(rows), 100.f);
    y.assign(x.size(), 0), totals.assign(total.size(), 0), count.assign(total.size(), 0);
    args = {tensor(0, kF32, x.data()), tensor(1, kF32, w.data()), tensor(2, kF32, total.data()),
            tensor(3, kF32, nullptr), tensor(4, kI64, nullptr)};
    out = {tensor(2, kF64, totals.data()), tensor(3, kF64, y.data()), tensor(4, kI64, count.data())};
  }

  Problem problem;
  std::vector<float> x, w, total;
  std::vector<double> totals, y;
  std::vector<int64_t> count;
  std::vector<DLTensor> args, out;

 private:
  DLTensor tensor(size_t arg, DLDataType type, void* data) {
    return {data, {kDLCPU, 0}, static_cast<int>(shapes[arg].size()), type, shapes[arg].data(), nullptr, 0};
  }
  std::array<std::vector<int64_t>, 5> shapes;
};

inline PythonReference scaled_reference(const std::string& program, TimeLimits limits = {},
                                        const std::string& source = kScaledSource) {
  return PythonReference({"scaled_n4", source, scaled_schema()}, {program, limits, limits});
}

}  // namespace niche::evolve::python::test
