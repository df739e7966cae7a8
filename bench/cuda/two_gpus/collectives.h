// Collectives of two ranks: NCCL's on GPUs; on the host a stand-in over the Stage, whose two kinds wait for each other
// as little as NCCL's do: a rank in an all-reduce and one in a reduce-scatter are both there for ever.
//
// Thread-safety: one thread issues; abort() by any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "bench/cuda/two_gpus/stage.h"
#include "dispatch/base/status.h"

namespace niche::two_gpus {

enum class Element : uint8_t { kF32, kBf16 };

class Collectives {
 public:
  virtual ~Collectives() = default;
  // In place: the sum over the ranks. kDevice: given up, or the library's error.
  virtual dispatch::Status all_reduce(void* data, int64_t n, void* stream) = 0;
  // The same result by a reduce-scatter and an all-gather. Requires: n is a multiple of kRanks.
  virtual dispatch::Status scatter_gather(void* data, int64_t n, void* stream) = 0;
  // What is under way comes to an end, with whatever result; nothing can be issued after it. May block until captured
  // graphs that hold these collectives are destroyed.
  virtual void abort() = 0;
};

// The `session`-th communicator of this rank. Blocks until the other rank has come; `give_up` says when not to wait.
dispatch::Result<std::unique_ptr<Collectives>> host_collectives(Stage* stage, int rank, uint32_t session);
// Rank 0 leaves the communicator's name on the stage. `library`: libnccl.so.2, wherever it is.
dispatch::Result<std::unique_ptr<Collectives>> nccl_collectives(Stage* stage, int rank, uint32_t session,
                                                                Element element,
                                                                const std::function<bool()>& give_up);

}  // namespace niche::two_gpus
