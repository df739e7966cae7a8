// The error bound: a kernel's output against the fp64 reference, with the best fallback's error as the
// yardstick.
//
// Three measures, each of which must hold: the largest absolute error, the root mean square error, and the
// largest error relative to its own row's largest value (else a small row next to a large one could hold
// anything):
//   measure(kernel) <= factor * measure(fallback) + floor,  floor = floor_abs + u * scale,
// u: rounding of the output's type, scale: the largest (or rms, or row's) reference value; of fp16 also half of its
// smallest step, 2^-25, since its denormal numbers are in reach of operators.
// NaN and infinities must stand where the reference or the fallback has them; a reference beyond the type's largest
// value is an infinity, and one within the bound of it may be either. Integers, and every output of
// an exact operator, must be equal in every bit. Thread-safety: pure. Cost: about 2 ns an element.
#pragma once

#include <cstdint>
#include <string>

#include "dispatch/op_spec.h"

namespace niche::evolve::judge {

// One output as the reference sees it.
struct OutputView {
  DLDataType dtype{};
  int64_t elements = 0;
  int64_t row = 1;                  // extent of the innermost axis
  const void* reference = nullptr;  // f64 where dtype is floating, else dtype
};

struct ErrorStats {
  double max_abs = 0, rms = 0, max_row = 0;
  double scale_max = 0, scale_rms = 0;  // of the reference's values that the type can hold
  int64_t worst = 0;                    // element with the largest absolute error
};

// Reads element i of an array of `dtype` as a double.
double load_element(const void* data, DLDataType dtype, int64_t i);
// Half a unit in the last place of a value that fills its binade, relative, for narrow types; for wide ones with the
// allowance for a sum's last roundings.
double output_rounding(DLDataType dtype);

// Error of the fallback's output. Elements that are not finite on either side, or whose reference the type cannot
// hold, are left out.
ErrorStats fallback_error(const OutputView& view, const void* fallback);

struct Comparison {
  bool ok = true;
  double max_error = 0, rms_error = 0;  // in units of the bound
  std::string reason;                   // "element 4097 of 8192: max error 3.1e-3, bound 2.2e-6 (...)"
};
Comparison compare_output(const OutputView& view, const void* kernel, const void* fallback,
                          const ErrorStats& yardstick, const dispatch::Tolerance& tolerance);

}  // namespace niche::evolve::judge
