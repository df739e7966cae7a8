#include "runtime/live_call.h"

#include <cstring>

namespace niche::core {
namespace {

int64_t round64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

// Of a call whose memory the host cannot read: no shadow, whose copies are the host's. The workspace is the
// device's, and so is the time: the cycle counter sees the launch alone.
void LiveCall::prepare_device() {
  decision_.shadow = nullptr;
  const dispatch::Kernel& kernel = *decision_.kernel;
  if (kernel.is_fallback()) return;
  if (kernel.kind != dispatch::KernelKind::kCuda) {
    decision_ =
        call_.fall_back(handle_.site(place_.device), decision_, dispatch::FallbackReason::kForeignDevice);
    return;
  }
  if (kernel.workspace_units == 0) return;
  const auto& lend = handle_.core().config().device_workspace;
  if (lend) device_workspace_ = lend(place_.device - 1, place_.stream, kernel.plan.workspace_bytes);
  if (device_workspace_ == nullptr)
    decision_ =
        call_.fall_back(handle_.site(place_.device), decision_, dispatch::FallbackReason::kNoWorkspace);
}

void LiveCall::begin_device_time() {
  device_tag_ = handle_.core().device_times().begin(place_.device, place_.stream);
}

void LiveCall::end_time() {
  const uint64_t ticks = dispatch::cycles() - start_;
  if (place_.device != 0 && device_tag_ < 0) return;  // no event was to be had: nothing to record
  const dispatch::ProblemKey key = call_.pack(handle_.site(place_.device), layout_, args_.var);
  if (place_.device == 0) {
    call_.record_time(decision_, key, args_.var, ticks);
  } else {
    handle_.core().device_times().end(place_.device, std::exchange(device_tag_, -1), place_.stream,
                                      call_.record_of(decision_, key, args_.var));
  }
}

// Nothing of the kernel ran, or nothing can: the library answers where that is still possible.
dispatch::Status LiveCall::answer_refused(dispatch::CallFrame& frame) {
  using Refusal = dispatch::CallFrame::Refusal;
  const dispatch::Kernel& kernel = *decision_.kernel;
  const Refusal refusal = frame.refusal;
  const int32_t error = frame.device_error;
  if (slot_ != nullptr) handle_.core().shadow().abandon(std::exchange(slot_, nullptr));
  if (refusal == Refusal::kNothingRan && !kernel.is_fallback()) {
    decision_ =
        call_.fall_back(handle_.site(place_.device), decision_, dispatch::FallbackReason::kDeviceRefused);
    frame.refusal = Refusal::kNone;
    decision_.kernel->launch(*decision_.kernel, frame, handle_.core().executor());
    if (device_tag_ >= 0) end_time();
    if (frame.refusal == Refusal::kNone) return {};
  }
  if (device_tag_ >= 0) end_time();
  const char* what = refusal == Refusal::kDeviceLost ? "the device's context is lost: restart this process"
                     : refusal == Refusal::kPartlyRan
                         ? "the device refused a later phase; outputs are undefined"
                         : "the device refused the launch";
  return dispatch::device_error("kernel " + kernel.name + " (id " + std::to_string(kernel.id) + "): error " +
                                std::to_string(error) + ": " + what);
}

// Copies what the call is about to read (in-outs are updated, inputs may be reused by the caller the moment
// it returns). Constants that are bound are held by their owner instead.
void LiveCall::begin_shadow() {
  if (handle_.grouped()) return;  // a second run may issue collectives that the other ranks do not
  const CallPlan& plan = handle_.plan();
  const Bindings::Held held = handle_.bindings().held(args_.p);
  int64_t bytes = 0;
  for (int a = 0; a < plan.args(); ++a) {
    const CallPlan::Arg& arg = plan.arg(a);
    if (!arg.present) continue;
    const int64_t size = round64(plan.bytes(a, args_.n));
    if (arg.role != dispatch::ArgRole::kOut && !held.owner(a)) bytes += size;
    if (arg.role != dispatch::ArgRole::kIn) bytes += size;
  }
  slot_ = handle_.core().shadow().reserve(bytes);
  if (slot_ == nullptr) return;
  decision_.time = false;  // the copies would be timed with it
  ShadowJob& job = slot_->job;
  job.handle = handle_.weak_from_this();
  job.answered_by = decision_.kernel->id;
  job.shadow = decision_.shadow->id;
  job.rung = decision_.rung;
  job.route = decision_.route != nullptr ? decision_.route->index() : dispatch::kNoRoute;
  std::memcpy(job.axes, args_.n, sizeof job.axes);
  char* at = slot_->memory;
  for (int a = 0; a < plan.args(); ++a) {
    const CallPlan::Arg& arg = plan.arg(a);
    if (!arg.present) continue;
    const size_t i = static_cast<size_t>(a);
    const int64_t size = plan.bytes(a, args_.n);
    if (arg.role != dispatch::ArgRole::kOut) {
      if (held.owner(a)) {
        job.before[i] = args_.p[i];
        job.keep[i] = held.owner(a);
      } else {
        job.before[i] = at;
        std::memcpy(at, args_.p[i], static_cast<size_t>(size));
        at += round64(size);
      }
    }
    if (arg.role != dispatch::ArgRole::kIn) {
      job.after[i] = at;
      at += round64(size);
    }
  }
}

void LiveCall::finish_shadow() {
  const CallPlan& plan = handle_.plan();
  for (int a = 0; a < plan.args(); ++a) {
    const size_t i = static_cast<size_t>(a);
    if (slot_->job.after[i] == nullptr) continue;
    std::memcpy(slot_->job.after[i], args_.p[i], static_cast<size_t>(plan.bytes(a, args_.n)));
  }
  handle_.core().shadow().commit(std::exchange(slot_, nullptr));
}

}  // namespace niche::core
