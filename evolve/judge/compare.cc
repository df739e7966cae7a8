#include "evolve/judge/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace niche::evolve::judge {
namespace {

using dispatch::same_dtype;

double from_f16(uint16_t h) { return static_cast<double>(std::bit_cast<_Float16>(h)); }

template <typename T>
T raw(const void* data, int64_t i) {
  T v;
  std::memcpy(&v, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}

// Largest finite value: a reference beyond it is an infinity in the output's type.
double dtype_max(DLDataType t) {
  if (same_dtype(t, dispatch::kF32)) return 3.4028234663852886e38;
  if (same_dtype(t, dispatch::kBf16)) return 3.3895313892515355e38;
  if (same_dtype(t, dispatch::kF16)) return 65504;
  return 1.7976931348623157e308;
}

// Half of the type's smallest step: what rounding leaves of a result among the denormal numbers.
double half_step(DLDataType t) { return same_dtype(t, dispatch::kF16) ? 0x1p-25 : 0; }

// 0: finite, 1: NaN, 2: +inf, 3: -inf.
int non_finite_class(double v, double limit = INFINITY) {
  if (std::isnan(v)) return 1;
  if (v > limit || v == INFINITY) return 2;
  if (v < -limit || v == -INFINITY) return 3;
  return 0;
}
const char* class_name(int c) {
  static constexpr const char* kNames[] = {"finite", "NaN", "+inf", "-inf"};
  return kNames[c];
}

// A reference that the output's type can hold. One that it cannot is an infinity there: its size is no scale for
// the errors of the others, and fp16 has such references where fp32 has none.
bool representable(double r, double limit) { return std::abs(r) <= limit; }

double row_scale(const OutputView& v, double limit, int64_t begin, int64_t end) {
  const auto* r = static_cast<const double*>(v.reference);
  double m = 0;
  for (int64_t i = begin; i < end; ++i)
    if (representable(r[i], limit)) m = std::max(m, std::abs(r[i]));
  return m;
}

// Errors of one row into `s`. `floor_abs` is taken off before an error is related to its row.
void row_errors(const OutputView& v, const void* y, double floor_abs, int64_t begin, int64_t end,
                ErrorStats& s, double& sum_sq, double& sum_scale_sq) {
  const auto* r = static_cast<const double*>(v.reference);
  const double limit = dtype_max(v.dtype);
  const double scale = row_scale(v, limit, begin, end);
  s.scale_max = std::max(s.scale_max, scale);
  for (int64_t i = begin; i < end; ++i) {
    const double value = load_element(y, v.dtype, i);
    if (!std::isfinite(value) || !representable(r[i], limit)) continue;
    const double e = std::abs(value - r[i]);
    sum_sq += e * e;
    sum_scale_sq += r[i] * r[i];
    if (e > s.max_abs) s.max_abs = e, s.worst = i;
    const double excess = e - floor_abs;
    if (excess > 0) s.max_row = std::max(s.max_row, scale > 0 ? excess / scale : INFINITY);
  }
}

ErrorStats errors(const OutputView& v, const void* y, double floor_abs) {
  ErrorStats s;
  double sum_sq = 0, sum_scale_sq = 0;
  const int64_t row = std::max<int64_t>(1, v.row);
  for (int64_t b = 0; b < v.elements; b += row)
    row_errors(v, y, floor_abs, b, std::min(b + row, v.elements), s, sum_sq, sum_scale_sq);
  if (v.elements > 0) {
    s.rms = std::sqrt(sum_sq / static_cast<double>(v.elements));
    s.scale_rms = std::sqrt(sum_scale_sq / static_cast<double>(v.elements));
  }
  return s;
}

std::string where(int64_t i, int64_t n) {
  return "element " + std::to_string(i) + " of " + std::to_string(n) + ": ";
}

std::string format(const char* pattern, double a, double b, double c) {
  char text[200];
  std::snprintf(text, sizeof text, pattern, a, b, c);
  return text;
}

Comparison compare_exact(const OutputView& v, const void* kernel) {
  const bool floating = dispatch::is_float(v.dtype);
  const size_t width = dispatch::dtype_bytes(v.dtype);
  for (int64_t i = 0; i < v.elements; ++i) {
    const auto at = static_cast<size_t>(i) * width;
    bool equal;
    if (floating) {
      const double y = load_element(kernel, v.dtype, i), r = static_cast<const double*>(v.reference)[i];
      equal = (std::isnan(y) && std::isnan(r)) || (y == r && std::signbit(y) == std::signbit(r));
    } else {
      equal = std::memcmp(static_cast<const char*>(kernel) + at, static_cast<const char*>(v.reference) + at,
                          width) == 0;
    }
    if (equal) continue;
    Comparison c;
    c.ok = false;
    c.max_error = c.rms_error = INFINITY;
    c.reason = where(i, v.elements) + "not equal in every bit (the operator is exact)";
    return c;
  }
  return {};
}

}  // namespace

double load_element(const void* data, DLDataType t, int64_t i) {
  if (same_dtype(t, dispatch::kF32)) return raw<float>(data, i);
  if (same_dtype(t, dispatch::kF64)) return raw<double>(data, i);
  if (same_dtype(t, dispatch::kBf16))
    return std::bit_cast<float>(static_cast<uint32_t>(raw<uint16_t>(data, i)) << 16);
  if (same_dtype(t, dispatch::kF16)) return from_f16(raw<uint16_t>(data, i));
  if (same_dtype(t, dispatch::kI64)) return static_cast<double>(raw<int64_t>(data, i));
  if (same_dtype(t, dispatch::kI32)) return raw<int32_t>(data, i);
  if (same_dtype(t, dispatch::kU8)) return raw<uint8_t>(data, i);
  return NAN;
}

double output_rounding(DLDataType t) {
  // Narrow types: the one rounding of the result. Wide types: four, since on a small problem the fallback may
  // by luck be exact; 2.4e-7 is still 2,000 times below what a tf32 or bf16 product leaves.
  if (same_dtype(t, dispatch::kBf16)) return 0x1p-8 * 0.5 * 1.02;
  if (same_dtype(t, dispatch::kF16)) return 0x1p-11 * 0.5 * 1.02;
  if (same_dtype(t, dispatch::kF32)) return 4 * 0x1p-24;
  return 4 * 0x1p-53;
}

ErrorStats fallback_error(const OutputView& view, const void* fallback) {
  if (!dispatch::is_float(view.dtype)) return {};
  return errors(view, fallback, 0);
}

Comparison compare_output(const OutputView& v, const void* kernel, const void* fallback,
                          const ErrorStats& yardstick, const dispatch::Tolerance& tolerance) {
  if (tolerance.exact || !dispatch::is_float(v.dtype)) return compare_exact(v, kernel);

  Comparison c;
  const auto* r = static_cast<const double*>(v.reference);
  const double limit = dtype_max(v.dtype), u = output_rounding(v.dtype);
  // A reference so near the type's end that an error within the bound takes it across: finite and infinite are both
  // right there.
  const double edge = tolerance.factor * yardstick.max_abs + tolerance.floor_abs + 2 * u * limit;
  for (int64_t i = 0; i < v.elements; ++i) {
    const int got = non_finite_class(load_element(kernel, v.dtype, i));
    const int want = non_finite_class(r[i], limit);
    if (got == want) continue;
    const int library = non_finite_class(load_element(fallback, v.dtype, i));
    if (got == library) continue;
    const int beyond = r[i] > 0 ? 2 : 3;
    const double value = load_element(kernel, v.dtype, i);
    const bool near = got == 0 && std::abs(std::abs(value) - limit) <= edge && (value > 0) == (r[i] > 0);
    if (std::abs(std::abs(r[i]) - limit) <= edge && (near || got == beyond)) continue;
    c.ok = false;
    c.max_error = c.rms_error = INFINITY;
    c.reason = where(i, v.elements) + class_name(got) + " where the reference has " + class_name(want) +
               " and the library " + class_name(library);
    return c;
  }

  const double floor = tolerance.floor_abs + half_step(v.dtype);
  const ErrorStats s = errors(v, kernel, floor);
  const struct {
    const char* name;
    double error, bound;
  } measures[] = {{"max error", s.max_abs, tolerance.factor * yardstick.max_abs + floor + u * s.scale_max},
                  {"rms error", s.rms, tolerance.factor * yardstick.rms + floor + u * s.scale_rms},
                  {"error relative to its row", s.max_row, tolerance.factor * yardstick.max_row + u}};
  for (const auto& m : measures) {
    const double ratio = m.error == 0 ? 0 : m.error / m.bound;
    (m.name[0] == 'r' ? c.rms_error : c.max_error) =
        std::max(m.name[0] == 'r' ? c.rms_error : c.max_error, ratio);
    if (m.error <= m.bound || !c.ok) continue;
    c.ok = false;
    c.reason = where(s.worst, v.elements) + m.name +
               format(" %.3g, bound %.3g (%g times the library's error plus rounding)", m.error, m.bound,
                      tolerance.factor);
  }
  return c;
}

}  // namespace niche::evolve::judge
