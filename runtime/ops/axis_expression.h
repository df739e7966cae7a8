// AxisExpression: integer arithmetic over a schema's axes, as a JSON Definition writes it: derived axes ("L +
// 2 - K + 1"), operation counts ("4 * M * N") and constraints ("N % 8 == 0").
//
// Grammar: sums and products of integers, axis names and parentheses, with + - * // %, and at most one
// comparison (== != < <= > >=) on the outside, which gives 0 or 1. Division rounds down, as Python's does.
//
// Thread-safety: immutable. Cost: some ns a term; no allocation at evaluation. Bounds: 64 terms, 32
// parentheses deep.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dispatch/definition.h"

namespace niche::ops {

class AxisExpression {
 public:
  // kInvalid says what is wrong and at which character: an unknown axis, a missing operand, an operator that
  // is not known.
  static dispatch::Result<AxisExpression> parse(std::string_view text, const dispatch::OpSchema& schema);

  // One value an axis of the schema. kInvalid: division by zero, or a result beyond int64.
  dispatch::Result<int64_t> evaluate(std::span<const int64_t> axes) const;
  const std::string& text() const { return text_; }

 private:
  friend class ExpressionParser;
  enum class Op : uint8_t { kNumber, kAxis, kAdd, kSub, kMul, kDiv, kMod, kEq, kNe, kLt, kLe, kGt, kGe };
  struct Term {
    Op op;
    int64_t value;  // the number, or the axis
  };
  std::vector<Term> terms_;  // reverse Polish
  std::string text_;
};

}  // namespace niche::ops
