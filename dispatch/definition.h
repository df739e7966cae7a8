// OpSchema, Definition, Problem: what an operator is, what a model fixed of it, and what one call asks for.
//
// An OpSchema is written once per operator (runtime/ops, a user's shared object, a JSON Definition). A
// Definition is an OpSchema with its constant axes, element type and attributes fixed (`rms_norm, N=4096,
// bf16`); variable axes stay open. A Problem is a Definition with every axis known. The words are those of
// the FlashInfer Trace schema.
//
// Thread-safety: immutable after construction; share freely.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"
#include "dispatch/dtype.h"

namespace niche::dispatch {

inline constexpr int kMaxAxes = 12;    // constant + variable + derived
inline constexpr int kMaxVarAxes = 5;  // what fits a ProblemKey without hashing
inline constexpr int kMaxArgs = 12;    // inputs + outputs
inline constexpr int kMaxAttrs = 6;

enum class AxisKind : uint8_t {
  kConst,    // fixed by the Definition (a weight's width)
  kVar,      // read from the tensors at each call (batch, sequence)
  kDerived,  // computed from the others by OpSpec::derive_axes (a convolution's output length)
};
struct AxisSpec {
  std::string name;
  AxisKind kind;
};

enum class ArgRole : uint8_t {
  kIn,
  kOut,    // written in full; the caller's memory; contents before the call mean nothing
  kInOut,  // updated in place: evaluator, shadow and canary work on copies of it
};
struct ArgSpec {
  std::string name;
  ArgRole role = ArgRole::kIn;
  std::string dtype = "T";  // "T": the Definition's element type; else a fixed one ("i64")
  std::vector<int> shape;   // indices into OpSchema::axes, outermost first; empty: a scalar
  bool optional = false;    // present only where the attribute "has_<name>" is 1; absent: null pointer
  bool constant = false;    // a weight: the caller may declare it with bind_constant
};
struct AttrSpec {
  std::string name;
  double default_value = 0;
  // What Definition::make lets through. A switch that makes an argument present ("has_<name>") is 0 or 1 anyway.
  double lo = -std::numeric_limits<double>::max(), hi = std::numeric_limits<double>::max();
  bool whole = false;  // whole numbers alone
};

struct OpSchema {
  std::string op;              // "rms_norm"
  std::vector<AxisSpec> axes;  // at most kMaxAxes, at most kMaxVarAxes of them variable
  std::vector<ArgSpec> args;   // inputs first, then kInOut, then outputs; at most kMaxArgs
  std::vector<AttrSpec> attrs;
  std::vector<std::string> dtypes;  // element types "T" may take, as dtype_name spells them

  int axis_index(std::string_view name) const;  // -1: no such axis
  int arg_index(std::string_view name) const;
  int attr_index(std::string_view name) const;
  // kInvalid names the first broken rule (too many axes, an unknown axis in a shape, ...).
  Status validate() const;
};

class Definition {
 public:
  // `const_axes` gives {name, extent} for every kConst axis; `attrs` overrides defaults. kInvalid names what
  // is missing, unknown, not positive or out of an attribute's range, and what is allowed.
  static Result<std::shared_ptr<const Definition>> make(
      std::shared_ptr<const OpSchema> schema, DLDataType dtype,
      const std::vector<std::pair<std::string, int64_t>>& const_axes,
      const std::vector<std::pair<std::string, double>>& attrs = {});

  const OpSchema& schema() const { return *schema_; }
  const std::shared_ptr<const OpSchema>& schema_ptr() const { return schema_; }
  DLDataType dtype() const { return dtype_; }
  // Canonical, also a file-name-safe identity: "rms_norm.f32.N4096.eps1e-06". Equal names mean equal
  // Definitions.
  const std::string& name() const { return name_; }
  uint64_t hash() const { return hash_; }

  // One value an axis of the schema: the constant's extent, 0 for variable and derived axes.
  std::span<const int64_t> const_extents() const { return const_extents_; }
  std::span<const double> attrs() const { return attrs_; }  // in the schema's order
  double attr(std::string_view name) const;                 // requires: the schema has it
  // Indices of the variable axes, in the schema's order: the order of ProblemKey's axes.
  std::span<const int> var_axes() const { return var_axes_; }

  bool has_arg(int arg) const { return present_[static_cast<size_t>(arg)]; }
  DLDataType arg_dtype(int arg) const { return arg_dtypes_[static_cast<size_t>(arg)]; }

 private:
  Definition() = default;
  std::shared_ptr<const OpSchema> schema_;
  DLDataType dtype_{};
  std::string name_;
  uint64_t hash_ = 0;
  std::vector<int64_t> const_extents_;
  std::vector<double> attrs_;
  std::vector<int> var_axes_;
  std::vector<bool> present_;
  std::vector<DLDataType> arg_dtypes_;
};

// A Definition with every axis known, all arguments contiguous in row-major order on one device.
struct Problem {
  std::shared_ptr<const Definition> definition;
  std::array<int64_t, kMaxAxes> axes{};  // one value an axis of the schema

  // Extents of argument `arg`, outermost first. Requires: the argument is present.
  std::vector<int64_t> arg_shape(int arg) const;
  int64_t arg_elements(int arg) const;
  int64_t arg_bytes(int arg) const;
  // "B=4 L=200", the variable axes alone.
  std::string to_string() const;
};

}  // namespace niche::dispatch
