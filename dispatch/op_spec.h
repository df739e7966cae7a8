// OpSpec: the interface through which everybody below runtime/ sees an operator: schema, reference,
// fallbacks, inputs, cost and tolerance. Implemented in runtime/ops (ATen), by users' shared objects, by JSON
// Definitions, and by tests in plain C++.
//
// Thread-safety: const methods are called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/definition.h"
#include "dispatch/kernel_abi.h"

namespace niche::dispatch {

// Splits [0, tasks) over threads and returns when all is done. `body(ctx, begin, end)` never throws.
struct Executor {
  void (*parallel_for)(void* self, int64_t tasks, void (*body)(void* ctx, int64_t begin, int64_t end),
                       void* ctx) = nullptr;
  void* self = nullptr;
  int threads = 1;
};

// The arguments of one call in an OpSpec's own form (runtime/torch: at::Tensors), over memory that others
// own. Input and in-out tensors view the given pointers. Not thread-safe.
class NativeArgs {
 public:
  virtual ~NativeArgs() = default;
  virtual void* get() = 0;  // what CallFrame::native takes
  virtual void
  drop_outputs() = 0;  // outputs become undefined: the next fallback call allocates them, as in a server
  virtual void make_outputs() = 0;  // allocates outputs as a server would before it runs an evolved kernel
  virtual void outputs(
      void** p) = 0;  // p[arg] = pointer for each kOut argument that is defined, else unchanged
};

// What a fallback gets: everything about one call.
struct CallFrame {
  const Definition* definition = nullptr;
  const NicheKernelArgs* args = nullptr;  // pointers, axes, attributes
  void* native = nullptr;  // the caller's tensors in the OpSpec's own form; null: build from args
  // Memory a kernel may use during this call, 64-byte aligned (dispatcher.h: Call::workspace()); null: none
  // reserved.
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  void* stream = nullptr;  // the caller's device stream (CUstream); CPU kernels ignore it
  int32_t device = 0;      // where the arguments are: 0: in host memory; n: on CUDA device n - 1
  // What launch() says of a device that did not take the kernel; CPU kernels leave it alone.
  enum class Refusal : uint8_t {
    kNone,        // launched
    kNothingRan,  // refused before anything ran: another kernel may answer this call
    kPartlyRan,   // refused after a first phase: outputs and in-out arguments are undefined
    kDeviceLost,  // the device's context answers nothing any more: no kernel and no library can
  };
  Refusal refusal = Refusal::kNone;
  int32_t device_error = 0;  // the driver's number for it
};

struct Cost {
  double flops = 0;  // floating-point operations, an fma counts two
  double bytes = 0;  // unique bytes that must move: inputs once, outputs once
};

// Bound of a kernel's error against the fp64 reference: error <= factor * (best fallback's error) + floor,
// for the maximum and for the root mean square. `exact`: every bit must equal (integers, gathers).
struct Tolerance {
  bool exact = false;
  double factor = 2.0;
  double floor_abs = 0;  // in the output's own units, added to max(|y|)-scaled rounding of the output type
  std::string reason;    // why this factor: shown in Verdicts and docs
};

class OpSpec {
 public:
  virtual ~OpSpec() = default;

  virtual const std::shared_ptr<const OpSchema>& schema() const = 0;

  // Fills derived axes from the constant and variable ones already in `axes`. kInvalid: the combination is
  // not a problem of this operator (an empty output, say). Cost: some ns; called on the miss path, never on a
  // hit.
  virtual Status derive_axes(const Definition& d, std::span<int64_t> axes) const = 0;

  virtual Cost cost(const Problem& p) const = 0;
  virtual Tolerance tolerance(const Definition& d) const = 0;

  // Input distributions by number: 0 is what the model usually sees, the others are adversarial (wide range,
  // ties, extremes, structure). make_inputs fills every kIn and kInOut argument; `args` are contiguous host
  // tensors.
  virtual int distributions() const = 0;
  virtual std::string_view distribution_name(int distribution) const = 0;
  virtual Status make_inputs(const Problem& p, int distribution, uint64_t seed,
                             std::span<const DLTensor> args) const = 0;

  // fp64 reference. `args` as in make_inputs (kIn, kInOut in their own types, unchanged on return). `out` has
  // one tensor a kInOut and kOut argument, in order: f64 where the argument is floating, else its own type.
  virtual Status reference(const Problem& p, std::span<const DLTensor> args,
                           std::span<const DLTensor> out) const = 0;

  // For outputs whose written size depends on data: how many leading elements of argument `arg` count, given
  // the finished outputs. Default: all. Elements past it may hold anything.
  virtual int64_t written_elements(const Problem& p, int arg, std::span<const DLTensor> args) const {
    (void)args;
    return p.arg_elements(arg);
  }

  // Library forms, each able to run every problem of the schema ("addmm", "Gram order", "channels-last
  // conv2d"). Form 0 is the one a user writes first. The best of them is the bar a kernel has to beat and the
  // fallback served.
  virtual int fallback_count() const = 0;
  virtual std::string_view fallback_name(int form) const = 0;
  // False where a form does not apply to this Definition; form 0 always applies.
  virtual bool fallback_applies(int form, const Definition& d) const {
    (void)form;
    (void)d;
    return true;
  }
  // What CallFrame::native must be: "at::Tensor[]" (one a schema argument), or empty: forms run from
  // frame.args alone.
  virtual std::string_view native_form() const { return {}; }
  // Can its forms run on tensors of a CUDA device (CallFrame::device)? Plain C++ reads host memory alone.
  virtual bool runs_on_device() const { return false; }
  // Runs a form. With frame.native: on those tensors, allocating outputs that are undefined. Without: on
  // contiguous tensors at frame.args->p, outputs written there. Exceptions of the library pass unchanged.
  virtual void run_fallback(int form, const CallFrame& frame) const = 0;

  // Wraps memory for run_fallback; outputs undefined. p as in NicheKernelArgs.
  virtual std::unique_ptr<NativeArgs> wrap(const Problem& p, void* const* args) const = 0;
};

// Operators by name. Filled at start-up (built-ins, shared objects, JSON files), then read-only.
class OpRegistry {
 public:
  Status add(std::shared_ptr<const OpSpec> op);  // kInvalid: bad schema; kBusy: the name is taken
  const OpSpec* find(std::string_view op) const;
  std::shared_ptr<const OpSpec> find_shared(std::string_view op) const;
  const std::vector<std::shared_ptr<const OpSpec>>& all() const { return ops_; }

 private:
  std::vector<std::shared_ptr<const OpSpec>> ops_;
};

}  // namespace niche::dispatch
