// AtenOp: an operator written as a table over ATen: schema, cost, tolerance, inputs, fp64 reference and the
// library forms that a kernel has to beat.
//
// An operator is data: one Table a file section, no class of its own. The base turns pointers into tensors,
// upcasts for the reference, and puts results where the caller wants them.
//
// Thread-safety: immutable after construction. Cost of run_fallback on live tensors: one virtual call, one
// table entry and one check for inference tensors over the direct ATen call.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "dispatch/op_spec.h"
#include "runtime/ops/inputs.h"

namespace niche::ops {

class AtenOp : public dispatch::OpSpec {
 public:
  using Definition = dispatch::Definition;
  using Problem = dispatch::Problem;

  struct Form {
    std::string_view name;
    // `t` holds one tensor a schema argument. An output that is defined is written; one that is not is
    // assigned, best with ATen's own result so that nothing is copied. In-out tensors are updated in place.
    // Works on any leading shape where the operator is row-wise.
    void (*run)(const Definition& d, at::Tensor* t);
    bool (*applies)(const Definition& d) = nullptr;  // null: to every Definition
  };

  struct Table {
    dispatch::OpSchema schema;
    // Variable axes that may be 0; every other axis is at least 1.
    std::vector<std::string_view> may_be_empty;
    // Null where the schema has no derived axis. Called after the check above.
    dispatch::Status (*derive)(const Definition& d, std::span<int64_t> axes) = nullptr;
    double (*flops)(const Problem& p) = nullptr;
    double (*bytes)(const Problem& p) = nullptr;  // null: every argument once, in-out twice
    dispatch::Tolerance (*tolerance)(const Definition& d) = nullptr;
    std::vector<std::string_view> distributions;
    void (*fill)(const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) = nullptr;
    // `t`: floating arguments in f64, others in their own type. In-out tensors are copies to update in place;
    // outputs are allocated, zeroed, and to be written in place.
    void (*reference)(const Definition& d, at::Tensor* t) = nullptr;
    int64_t (*written)(const Problem& p, int arg, std::span<const DLTensor> args) = nullptr;  // null: all
    std::vector<Form> forms;
  };

  explicit AtenOp(Table table);

  const std::shared_ptr<const dispatch::OpSchema>& schema() const override { return schema_; }
  dispatch::Status derive_axes(const Definition& d, std::span<int64_t> axes) const override;
  dispatch::Cost cost(const Problem& p) const override;
  dispatch::Tolerance tolerance(const Definition& d) const override { return table_.tolerance(d); }
  int distributions() const override { return static_cast<int>(table_.distributions.size()); }
  std::string_view distribution_name(int distribution) const override;
  dispatch::Status make_inputs(const Problem& p, int distribution, uint64_t seed,
                               std::span<const DLTensor> args) const override;
  dispatch::Status reference(const Problem& p, std::span<const DLTensor> args,
                             std::span<const DLTensor> out) const override;
  int64_t written_elements(const Problem& p, int arg, std::span<const DLTensor> args) const override;
  int fallback_count() const override { return static_cast<int>(table_.forms.size()); }
  std::string_view fallback_name(int form) const override {
    return table_.forms[static_cast<size_t>(form)].name;
  }
  bool fallback_applies(int form, const Definition& d) const override;
  std::string_view native_form() const override { return "at::Tensor[]"; }
  bool runs_on_device() const override { return true; }
  void run_fallback(int form, const dispatch::CallFrame& frame) const override;
  std::unique_ptr<dispatch::NativeArgs> wrap(const Problem& p, void* const* args) const override;

 private:
  Table table_;
  std::shared_ptr<const dispatch::OpSchema> schema_;
  // By axis: the least extent; of a derived one nothing is asked.
  std::array<int64_t, dispatch::kMaxAxes> least_{};
};

// Puts a result where the caller wants it: assigned when `out` is undefined, else copied.
inline void put(at::Tensor& out, at::Tensor result) {
  if (out.defined())
    out.copy_(result);
  else
    out = std::move(result);
}

// The names of inputs.h's shapes in order, for Table::distributions of operators whose arguments are all
// floating.
std::vector<std::string_view> shape_names();

}  // namespace niche::ops
