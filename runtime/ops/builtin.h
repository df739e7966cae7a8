// The operators that ship with niche: schema, reference, library forms, inputs and tolerances
// (docs/operators.md).
#pragma once

#include "dispatch/op_spec.h"

namespace niche::ops {

// Adds every built-in operator. kBusy names one whose name is taken. Call once, before the registry is
// shared.
dispatch::Status register_builtin_ops(dispatch::OpRegistry& registry);

}  // namespace niche::ops
