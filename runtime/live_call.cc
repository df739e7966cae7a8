#include "runtime/live_call.h"

#include <cstring>

namespace niche::core {
namespace {

int64_t round64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

// Copies what the call is about to read (in-outs are updated, inputs may be reused by the caller the moment
// it returns). Constants that are bound are held by their owner instead.
void LiveCall::begin_shadow() {
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
