// UserDocument: what make_torchscript_op needs of a JSON Definition beyond FlashInfer Trace's fields.
//
// Under the key "niche", all optional but `range` for integer inputs:
//   "constants": ["weight"]                      inputs that a caller may declare with bind_constant
//   "derive": {"Lo": "L + 2 - K + 1"}            derived axes, listed in "derived" too
//   "fallback": "def run(x): ..."                a library form in TorchScript
//   "flops": "4 * M * N"                         operations; default: one an output element
//   "range": {"indices": [0, "V"]}               values of an integer input: lo <= v < hi, axis expressions
//   "sorted": ["offsets"]                        inputs in ascending order
//   "scale": {"x": 0.05}                         deviation of a floating input; default 1
//   "tolerance": {"factor": 2, "floor": 1e-6, "reason": "..."}
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dispatch/op_spec.h"
#include "runtime/ops/axis_expression.h"

namespace niche::ops {

struct UserDocument {
  std::string name;  // the Definition's, for messages
  std::string reference;
  std::string fallback;  // TorchScript; empty: the reference is the one library form
  dispatch::OpSchema schema;
  DLDataType dtype{};
  std::vector<std::pair<std::string, int64_t>> constants;  // extents of the constant axes
  std::vector<AxisExpression> constraints;
  std::map<int, AxisExpression> derive;                             // by axis
  std::map<int, std::pair<AxisExpression, AxisExpression>> ranges;  // by argument
  std::vector<bool> sorted;                                         // by argument
  std::vector<double> scale;                                        // by argument
  std::optional<AxisExpression> flops;
  std::optional<dispatch::Tolerance> tolerance;
};

// kInvalid names the first field that is missing or wrong.
dispatch::Result<UserDocument> parse_user_document(std::string_view text);

}  // namespace niche::ops
