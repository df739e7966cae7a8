// Tolerances shared by the operators, each with the reason that Verdicts and docs/operators.md show.
#pragma once

#include "dispatch/op_spec.h"

namespace niche::ops {

// Integers, gathers, comparisons.
inline dispatch::Tolerance exact_tolerance() {
  return {true, 0, 0, "integer results: a comparison is right or wrong, so every element must be equal"};
}

// `floor_f32` applies to fp32 alone: bf16 and fp16 results are rounded at 2^-9 and 2^-12, which hides what fp32
// accumulation loses.
inline dispatch::Tolerance float_tolerance(const dispatch::Definition& d, double factor, double floor_f32,
                                           const char* reason) {
  const bool f32 = dispatch::same_dtype(d.dtype(), dispatch::kF32);
  dispatch::Tolerance t;
  t.factor = f32 ? factor : 2;
  t.floor_abs = f32 ? floor_f32 : 0;
  t.reason = f32 ? reason
                 : "bf16, fp16: twice the library's error; both accumulate in fp32 and round the result once";
  return t;
}

}  // namespace niche::ops
