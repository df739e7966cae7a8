// Library forms on a CUDA device, for the process in which candidates are timed (evolve/probe).
//
// libtorch's CUDA half is opened by name at run time: niche links the other one. Thread-safety: one thread.
#pragma once

#include <memory>

#include "evolve/probe/library_forms.h"

namespace niche {

// kUnsupported: libtorch_cuda is not there (the loader's reason), or it has no such device.
dispatch::Result<std::unique_ptr<evolve::LibraryForms>> torch_cuda_forms(int ordinal);

// Opens libtorch_cuda.so beside the libtorch that is loaded. Idempotent.
dispatch::Status open_torch_cuda();

}  // namespace niche
