// Runtime and OpHandle: niche's public API.
//
//   niche::RuntimeConfig config = niche::torch_config();  // built-in operators, at::parallel_for
//   config.cache_dir = "/var/cache/ranker";               // verified kernels survive restarts here
//   if (auto s = niche::apply_environment(environ, &config); !s.ok()) die(s.to_string());
//   auto runtime = niche::Runtime::create(std::move(config));  // evolved kernels serve from the first call
//   if (!runtime.ok()) die(runtime.status().to_string());
//
//   // Once a call site: an operator with what the model fixes of it. The handle may outlive the Runtime.
//   auto norm = (*runtime)->op("rms_norm", niche::kF32, {{"N", 4096}}, {{"eps", 1e-6}});
//   if (!norm.ok()) die(norm.status().to_string());
//   auto s = niche::bind_constant(*norm, "weight", weight);  // kernels may then use a packed copy of it
//
//   // Each request:
//   {
//     // Optional: makes rollout sticky by id and tells the planner the request's latency.
//     niche::RequestScope request((*runtime)->dispatcher(), {.id = request_id});
//     at::Tensor y = niche::torch_call(*norm, x, weight);  // the best verified kernel, else ATen's best form
//   }
//   puts((*runtime)->explain(*norm, {{"M", 17}})->to_text().c_str());  // what serves M=17, and why
//   puts((*runtime)->metrics().c_str());  // Prometheus text; also on config.http_address
//
// Any number of Runtimes may live in one process; there is no static state. Destroying a Runtime under load
// is safe: calls in flight end on the kernel they began with, later ones serve the fallback. In a forked
// child every call serves the fallback.
//
// Thread-safety: Runtime and OpHandle: all members may be called from any thread at any time. bind_constant,
// rebind and unbind of one handle exclude each other and may run while calls are made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dispatch/definition.h"
#include "dispatch/dispatcher.h"
#include "dispatch/request_scope.h"
#include "runtime/config.h"
#include "runtime/explanation.h"
#include "runtime/group.h"

namespace niche {

using dispatch::CapturedGraph;
using dispatch::CaptureState;
using dispatch::Code;
using dispatch::GraphOptions;
using dispatch::kBf16;
using dispatch::kF32;
using dispatch::kI64;
using dispatch::RequestScope;
using dispatch::Result;
using dispatch::StaleGraph;
using dispatch::Status;

namespace core {
class Control;
class HandleState;
class RuntimeCore;
}  // namespace core

using Axes = std::vector<std::pair<std::string, int64_t>>;
using Attrs = std::vector<std::pair<std::string, double>>;

// One call site's operator. A copy is the same call site (a reference count); ask Runtime::op again for a
// second one with bindings of its own.
class OpHandle {
 public:
  OpHandle() = default;
  explicit OpHandle(std::shared_ptr<core::HandleState> state) : state_(std::move(state)) {}

  bool valid() const { return state_ != nullptr; }
  const dispatch::Definition& definition() const;
  uint32_t id() const;  // 24 bits; equal for equal Definitions of one Runtime

  // Runs the operator. `args`: one tensor a schema argument, in its order; an absent optional one has data ==
  // nullptr. Outputs and in-out tensors are the caller's memory; shapes must fit the Definition. Contiguous
  // CPU tensors run a kernel; strided ones are gathered into temporaries and served by the fallback, counted
  // as "layout". kInvalid names the argument and what is wrong with it. Exceptions of the library behind the
  // fallback pass unchanged. Cost: about 40 ns beyond the kernel. Requires: valid().
  // Tensors on one CUDA device (RuntimeConfig::cuda_devices) run on `stream`, the caller's CUstream, whose
  // device's context is current on this thread and which is ATen's current stream there, since that is where
  // its library forms run; kUnsupported: one of them is not contiguous; kDevice: the
  // device's context is lost, or the answer is.
  Status call(std::span<const DLTensor> args, void* stream = nullptr) const;

  // Declares argument `arg` constant at this call site: its contents change only with rebind(). Kernels that
  // ask for it are then given a packed copy. `owner` keeps the memory alive (a strong reference, released by
  // rebind, unbind or with the last handle); `version`, where the owner has one, returns a number that
  // changes when the contents do. A call whose argument points elsewhere than the binding is served without
  // packed copies and counted. kInvalid: no such argument, not declared constant by the schema, wrong shape
  // or type, not contiguous. Blocks while kernels that are published repack.
  Status bind_constant(std::string_view arg, const DLTensor& tensor, std::shared_ptr<const void> owner,
                       std::function<uint64_t()> version = {}) const;
  // After an update of the contents, or with another tensor: packs again, then publishes. kNotFound: never
  // bound.
  Status rebind(std::string_view arg, const DLTensor& tensor, std::shared_ptr<const void> owner,
                std::function<uint64_t()> version = {}) const;
  Status unbind(std::string_view arg) const;

  core::HandleState* state() const { return state_.get(); }

 private:
  std::shared_ptr<core::HandleState> state_;
};

struct Health {
  bool ok = true;
  std::string reason;  // not ok: "restart me: device error in kernel ..."; ok: what is degraded, or empty
};

class Runtime {
 public:
  // NICHE_DISABLE=1 in the environment holds whatever the config says; the other variables are read by who calls
  // apply_environment. kInvalid: the config, an operator's schema or a library; kIo: the cache directory. A cache that is merely
  // corrupt, foreign or locked is a logged miss, never an error.
  static Result<std::unique_ptr<Runtime>> create(RuntimeConfig config);
  // Ends sessions, flushes counters to the cache and joins the control threads (at most about a second).
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // kNotFound lists near names of operators; kInvalid names the missing, unknown or wrong axis or attribute.
  // kBusy: 2^24 Definitions exist. Takes a lock; call it once a call site.
  Result<OpHandle> op(std::string_view op, DLDataType dtype, const Axes& const_axes, const Attrs& attrs = {});

  // What a call with these variable axes would be served by, and why. kInvalid: a variable axis is missing or
  // unknown.
  Result<Explanation> explain(const OpHandle& handle, const Axes& axes) const;

  // Serves `kernel` (a resident or cached kernel's name, or "fallback") wherever its Guard holds; "" ends the
  // force. kNotFound: no kernel of this name. Takes effect for calls that begin after the return.
  Status force(std::string_view kernel);

  // Stops proposing new sessions and pauses running ones, or lets them go on. Serving and rollout are not
  // touched.
  void pause_evolution(bool paused);

  std::string status()
      const;  // JSON: switches, cache, calls, sessions, Definitions with their kernels, events, warnings
  std::string metrics() const;  // Prometheus text format
  Health health() const;
  // Port of the HTTP listener, 0 when off (http_address with port 0 picks a free one).
  int http_port() const;
  // Evolution sessions that run now, paused ones left out; as of the last tick. One load: a server may ask a
  // request.
  int sessions_running() const;

  // This server's part in the group that the config names (group_board, group_rank, group_ranks), joined by the
  // first call: once the handles of its operators are made, since what the others serve is prepared here. The same
  // object each time. kInvalid: no group is configured; kIo: the board; what a kernel that the others serve says
  // where it cannot be loaded.
  Result<std::shared_ptr<Group>> join_group();

  // A kernel of the server's own that the group may choose, for a Definition of which a handle was made: one whose
  // launch issues collectives, say, as no evolved kernel does. Every rank offers it under one name, and before it joins,
  // since what the others serve is prepared there. Nothing times, verifies or withdraws it: the server proposes it with
  // Group::propose. Lives as long as the Runtime. kInvalid, kNotFound, kBusy say what is wrong with it.
  Status offer_to_group(std::shared_ptr<const dispatch::Kernel> kernel);

  // A handle for one device graph that the server captures: opened under
  //
  //   niche::RequestScope capture(runtime->dispatcher(), {.capture = CaptureState::kCaptured, .graph = g.get()});
  //
  // it keeps alive what the captured calls use, tells with may_replay() whether a kernel in it was
  // quarantined, and calls options.on_stale (on a thread of the Runtime, which it must neither hold up nor
  // call into) when calls outside would be served by another kernel. dispatch/captured_graph.h has the
  // contract. kBusy: too many are alive. kUnsupported: a forked child. May outlive the Runtime.
  Result<std::shared_ptr<CapturedGraph>> graph(GraphOptions options) const;
  // Graphs of this owner ("": of all) that replay what would not be chosen now, and which calls in them.
  std::vector<StaleGraph> stale_graphs(const std::string& owner = "") const;

  // For RequestScope. Lives as long as the Runtime or any of its handles.
  dispatch::Dispatcher& dispatcher() const;
  core::RuntimeCore& core() const { return *core_; }

 private:
  Runtime(std::shared_ptr<core::RuntimeCore> core, std::unique_ptr<core::Control> control);
  std::shared_ptr<core::RuntimeCore> core_;
  std::unique_ptr<core::Control> control_;
};

}  // namespace niche
