// KernelLoader: from a record of the cache to a kernel that can be published in this process: checked,
// loaded, workspace reserved, constants packed at every call site of its Definition.
//
// Thread-safety: under Control's lock. Bounds: resident_bytes_max of code (never unloaded),
// workspace_bytes_max a thread, Bindings::kPackSlots packing kernels a Definition.
#pragma once

#include <memory>
#include <unordered_map>

#include "kernels_cache/kernel_cache.h"
#include "runtime/core.h"
#include "runtime/resident_kernel.h"

namespace niche::core {

class KernelLoader {
 public:
  explicit KernelLoader(RuntimeCore& core) : core_(core) {}

  // `device`: CallFrame's. kInvalid: not a kernel of this Definition; kUnsupported: a kind without a device here; kBusy: a stated
  // bound; kCorrupt and kNotFound: the artefact.
  dispatch::Result<std::shared_ptr<const ResidentKernel>> load(const RuntimeCore::Known& known,
                                                               const kernels_cache::KernelRecord& record,
                                                               bool proven, int device = 0);
  int64_t resident_bytes() const { return resident_bytes_; }

 private:
  static std::shared_ptr<const ResidentKernel> resident(const RuntimeCore::Known& known,
                                                        const kernels_cache::KernelRecord& record,
                                                        std::shared_ptr<const dispatch::Kernel> kernel,
                                                        bool proven);
  RuntimeCore& core_;
  int64_t resident_bytes_ = 0;
  std::unordered_map<uint32_t, int> next_pack_slot_;  // by Definition; a slot is never reused
};

}  // namespace niche::core
