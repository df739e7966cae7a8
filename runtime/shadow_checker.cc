#include "runtime/shadow_checker.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

#include "dispatch/devices/cpu/cpu_kernel.h"
#include "evolve/judge/compare.h"
#include "evolve/judge/host_args.h"
#include "runtime/handle_state.h"

namespace niche::core {

using dispatch::ArgRole;
using dispatch::Status;
using evolve::judge::HostArgs;
using evolve::judge::KernelArgs;

namespace {

struct Buffer {
  explicit Buffer(int64_t bytes) : p(std::aligned_alloc(64, static_cast<size_t>((bytes + 64) / 64 * 64))) {}
  ~Buffer() { std::free(p); }
  Buffer(Buffer&& o) noexcept : p(std::exchange(o.p, nullptr)) {}
  Buffer& operator=(Buffer&&) = delete;
  void* p;
};

// One run of a kernel or a library form on private copies of what it updates.
class Run {
 public:
  Run(const dispatch::Problem& problem, const ShadowJob& job)
      : args_(*problem.definition, problem.axes.data()) {
    const auto& schema = problem.definition->schema();
    for (size_t a = 0; a < schema.args.size(); ++a) {
      if (!problem.definition->has_arg(static_cast<int>(a))) continue;
      args_.p[a] = job.before[a];
      if (schema.args[a].role == ArgRole::kIn) continue;
      const int64_t bytes = problem.arg_bytes(static_cast<int>(a));
      buffers_.emplace_back(bytes);
      if (buffers_.back().p == nullptr) ok_ = false;
      if (ok_ && schema.args[a].role == ArgRole::kInOut)
        std::memcpy(buffers_.back().p, job.before[a], static_cast<size_t>(bytes));
      args_.p[a] = buffers_.back().p;
    }
  }
  bool ok() const { return ok_; }
  void* const* outputs() const { return args_.p.data(); }

  Status launch(const dispatch::Kernel& kernel, const HandleState& handle) {
    if (!ok_) return dispatch::busy("no memory for a shadow run");
    std::vector<Buffer> workspace;
    dispatch::CallFrame frame;
    frame.definition = kernel.definition.get();
    frame.args = &args_.args;
    if (kernel.pack_slot >= 0) {
      packed_ = handle.bindings().hold_packed(kernel.pack_slot, args_.p.data());
      args_.args.packed = packed_.get();
      if (packed_ == nullptr) return dispatch::not_found("the constants of this call are bound no more");
    }
    if (kernel.plan.workspace_bytes > 0) {
      workspace.emplace_back(kernel.plan.workspace_bytes);
      frame.workspace = args_.args.ws = workspace.back().p;
      frame.workspace_bytes = kernel.plan.workspace_bytes;
      if (frame.workspace == nullptr) return dispatch::busy("no memory for a shadow run's workspace");
    }
    try {
      kernel.launch(kernel, frame, dispatch::serial_executor());
    } catch (const std::exception& e) {
      return dispatch::unsupported(std::string("library form threw: ") + e.what());
    }
    if (frame.refusal != dispatch::CallFrame::Refusal::kNone)
      return dispatch::device_error("the device refused kernel " + kernel.name + ", error " +
                                    std::to_string(frame.device_error));
    return {};
  }

 private:
  KernelArgs args_;
  std::vector<Buffer> buffers_;
  std::shared_ptr<const void> packed_;
  bool ok_ = true;
};

// The reference's outputs, and the library form's error as the yardstick of each.
struct Expected {
  std::vector<int> args;  // in-outs and outputs
  std::vector<Buffer> reference;
  std::vector<evolve::judge::OutputView> views;
  std::vector<evolve::judge::ErrorStats> yardsticks;
};

}  // namespace

void ShadowChecker::check(const ShadowJob& job, const std::function<void(const ShadowFinding&)>& found) {
  const std::shared_ptr<HandleState> handle = job.handle.lock();
  const auto answered = resolve_(job.answered_by);
  const auto shadow = resolve_(job.shadow);
  if (!handle || !answered || !shadow) return;
  const dispatch::OpSpec& op = handle->op();
  dispatch::Problem problem;
  problem.definition = handle->definition();
  std::copy(std::begin(job.axes), std::end(job.axes), problem.axes.begin());
  const auto& schema = problem.definition->schema();

  ShadowFinding skipped;
  skipped.route = job.route;
  skipped.kernel = answered->is_fallback() ? shadow->id : answered->id;
  const auto skip = [&](std::string why) {
    skipped.reason = std::move(why);
    found(skipped);
  };

  const auto library = answered->is_fallback() ? answered
                       : shadow->is_fallback() ? shadow
                                               : core_.dispatcher().fallback(handle->site().definition(), 0);
  Run library_run(problem, job);
  if (const Status s = library_run.launch(*library, *handle); !s.ok()) return skip(s.message());

  Expected expected;
  std::array<void*, dispatch::kMaxArgs> reference{};
  for (int a = 0; a < static_cast<int>(schema.args.size()); ++a) {
    if (!problem.definition->has_arg(a) || schema.args[static_cast<size_t>(a)].role == ArgRole::kIn) continue;
    expected.args.push_back(a);
    expected.reference.emplace_back(evolve::judge::reference_bytes(problem, a));
    reference[static_cast<size_t>(a)] = expected.reference.back().p;
    if (reference[static_cast<size_t>(a)] == nullptr) return skip("no memory for the reference");
  }
  HostArgs inputs(problem, job.before.data());
  HostArgs outputs = HostArgs::outputs(problem, reference.data());
  if (const Status s = op.reference(problem, inputs.tensors(), outputs.tensors()); !s.ok())
    return skip(s.message());

  std::array<void*, dispatch::kMaxArgs> finished{};
  for (size_t a = 0; a < schema.args.size(); ++a) finished[a] = library_run.outputs()[a];
  HostArgs finished_args(problem, finished.data());
  for (size_t i = 0; i < expected.args.size(); ++i) {
    const int a = expected.args[i];
    evolve::judge::OutputView v;
    v.dtype = problem.definition->arg_dtype(a);
    v.elements = op.written_elements(problem, a, finished_args.tensors());
    const std::vector<int64_t> shape = problem.arg_shape(a);
    v.row = shape.empty() ? 1 : shape.back();
    v.reference = expected.reference[i].p;
    expected.views.push_back(v);
    expected.yardsticks.push_back(evolve::judge::fallback_error(v, library_run.outputs()[a]));
  }
  const dispatch::Tolerance tolerance = op.tolerance(*problem.definition);

  const auto judge = [&](const dispatch::Kernel& kernel, void* const* answer) {
    ShadowFinding f;
    f.kernel = kernel.id;
    f.route = job.route;
    f.kind = ShadowFinding::Kind::kMatched;
    for (size_t i = 0; i < expected.args.size(); ++i) {
      const int a = expected.args[i];
      const auto c = evolve::judge::compare_output(expected.views[i], answer[a], library_run.outputs()[a],
                                                   expected.yardsticks[i], tolerance);
      f.max_error = std::max(f.max_error, c.max_error);
      if (c.ok) continue;
      f.kind = ShadowFinding::Kind::kMismatched;
      f.reason = "output '" + schema.args[static_cast<size_t>(a)].name + "' at " + problem.to_string() +
                 ": " + c.reason;
      break;
    }
    found(f);
  };
  if (!answered->is_fallback()) judge(*answered, job.after.data());
  if (!shadow->is_fallback()) {
    Run shadow_run(problem, job);
    if (const Status s = shadow_run.launch(*shadow, *handle); !s.ok()) return skip(s.message());
    judge(*shadow, shadow_run.outputs());
  }
}

}  // namespace niche::core
