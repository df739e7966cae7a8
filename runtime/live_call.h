// LiveCall: one call from its axes to the kernel's end: decide, packed constants, workspace, timing, shadow.
// Used by OpHandle::call and by runtime/torch.
//
// Thread-safety: one thread, on its stack. Cost: about 15 ns beyond the kernel when nothing is sampled.
#pragma once

#include <cstdint>
#include <utility>

#include "dispatch/devices/cpu/cycle_clock.h"
#include "dispatch/dispatcher.h"
#include "runtime/core.h"
#include "runtime/handle_state.h"

namespace niche::core {

// A call's arguments in the form that kernels take.
struct CallArgs {
  void* p[dispatch::kMaxArgs];
  int64_t n[dispatch::kMaxAxes];
  int64_t var[dispatch::kMaxVarAxes];
};
static_assert(sizeof(long) == sizeof(int64_t), "NicheKernelArgs::n is read as int64_t");

// Where a call runs: as CallFrame says.
struct CallPlace {
  int device = 0;
  void* stream = nullptr;
};

class LiveCall {
 public:
  // `args`: axes and input pointers filled; outputs may still be null.
  LiveCall(HandleState& handle, CallArgs& args, dispatch::LayoutClass layout, CallPlace place = {})
      : handle_(handle), args_(args), place_(place), call_(handle.core().dispatcher()), layout_(layout) {
    decision_ = call_.decide(handle.site(place.device), layout, args.var);
    if (place.device != 0) [[unlikely]]
      prepare_device();
    if (decision_.kernel->pack_slot >= 0) {
      packed_ = handle.bindings().packed(decision_.kernel->pack_slot, args.p);
      if (packed_ == nullptr) [[unlikely]]
        decision_ =
            call_.fall_back(handle.site(place.device), decision_, dispatch::FallbackReason::kNotPacked);
    }
    // Both arms of a canary are timed on every call: exposure is dear, and each pair counts.
    if (decision_.rung == dispatch::Rung::kCanary || decision_.rung == dispatch::Rung::kControl) [[unlikely]]
      decision_.time = true;
    if (decision_.time) start_ = dispatch::cycles();
  }
  // A call that no kernel may see.
  LiveCall(HandleState& handle, CallArgs& args, dispatch::FallbackReason reason, CallPlace place = {})
      : handle_(handle), args_(args), place_(place), call_(handle.core().dispatcher()) {
    decision_ = call_.fall_back(handle.site(place.device), reason);
  }
  ~LiveCall() {
    if (slot_ != nullptr) [[unlikely]]
      handle_.core().shadow().abandon(slot_);
  }
  LiveCall(const LiveCall&) = delete;
  LiveCall& operator=(const LiveCall&) = delete;

  bool library() const { return decision_.kernel->is_fallback(); }
  const dispatch::Decision& decision() const { return decision_; }

  // Runs. Outputs must be there unless library() and `native` is given; `native` is what CallFrame says. A
  // launch that the device refuses is answered by the fallback. kDevice: not even that is possible.
  // Exceptions of the library pass.
  [[nodiscard]] dispatch::Status run(void* native) {
    const dispatch::Definition& d = *handle_.definition();
    NicheKernelArgs abi{args_.p, reinterpret_cast<const long*>(args_.n), d.attrs().data(), nullptr, packed_};
    dispatch::CallFrame frame;
    frame.definition = &d;
    frame.args = &abi;
    frame.native = native;
    frame.stream = place_.stream;
    frame.device = place_.device;
    if (decision_.kernel->workspace_units != 0) {
      if (place_.device == 0) [[likely]]
        call_.lend_workspace(frame);
      else
        frame.workspace = device_workspace_;
      abi.ws = frame.workspace;
    }
    if (decision_.shadow != nullptr) [[unlikely]]
      begin_shadow();
    if (decision_.time && place_.device != 0) [[unlikely]]
      begin_device_time();
    decision_.kernel->launch(*decision_.kernel, frame, handle_.core().executor());
    if (frame.refusal != dispatch::CallFrame::Refusal::kNone) [[unlikely]]
      return answer_refused(frame);
    if (decision_.time) [[unlikely]]
      end_time();
    return {};
  }

  // True when the answer must be handed to finish_shadow(): once every p[] of an output points to it.
  bool shadowed() const { return slot_ != nullptr; }
  void finish_shadow();

 private:
  void begin_shadow();
  dispatch::Status answer_refused(dispatch::CallFrame& frame);
  void prepare_device();
  void begin_device_time();
  void end_time();

  HandleState& handle_;
  CallArgs& args_;
  const CallPlace place_;
  void* device_workspace_ = nullptr;
  int64_t device_tag_ = -1;  // of the events around a timed call on a device
  dispatch::Dispatcher::Call call_;
  dispatch::LayoutClass layout_;
  dispatch::Decision decision_;
  const void* packed_ = nullptr;
  uint64_t start_ = 0;
  ShadowArena::Slot* slot_ = nullptr;
};

}  // namespace niche::core
