// NCCL, opened by name at run time: its half dozen entry points as nccl.h declares them.
#include <dlfcn.h>

#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "bench/cuda/two_gpus/collectives.h"

namespace niche::two_gpus {
namespace {

using dispatch::Result;
using dispatch::Status;

struct NcclId {
  char bytes[128];
};
using NcclComm = void*;
enum : int { kSuccess = 0, kInProgress = 7 };
enum : int { kFloat32 = 7, kBfloat16 = 9 };
enum : int { kSum = 0 };

struct Nccl {
  int (*ncclGetUniqueId)(NcclId*) = nullptr;
  int (*ncclCommInitRank)(NcclComm*, int, NcclId, int) = nullptr;
  int (*ncclCommAbort)(NcclComm) = nullptr;
  int (*ncclCommGetAsyncError)(NcclComm, int*) = nullptr;
  int (*ncclAllReduce)(const void*, void*, size_t, int, int, NcclComm, void*) = nullptr;
  int (*ncclReduceScatter)(const void*, void*, size_t, int, int, NcclComm, void*) = nullptr;
  int (*ncclAllGather)(const void*, void*, size_t, int, NcclComm, void*) = nullptr;
  const char* (*ncclGetErrorString)(int) = nullptr;

  // kUnsupported: the loader's reason, or the entry point that is missing.
  static Result<const Nccl*> load() {
    static Nccl nccl;
    static const Status status = [] {
      // libtorch_cuda has it open, from wherever its package has put it.
      void* lib = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
      if (lib == nullptr) return dispatch::unsupported("libnccl.so.2: " + std::string(::dlerror()));
      const auto find = [&](auto& f, const char* name) {
        f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(::dlsym(lib, name));
        return f != nullptr;
      };
#define NICHE_FIND(name) \
  if (!find(nccl.name, #name)) return dispatch::unsupported("libnccl.so.2 has no " #name)
      NICHE_FIND(ncclGetUniqueId);
      NICHE_FIND(ncclCommInitRank);
      NICHE_FIND(ncclCommAbort);
      NICHE_FIND(ncclCommGetAsyncError);
      NICHE_FIND(ncclAllReduce);
      NICHE_FIND(ncclReduceScatter);
      NICHE_FIND(ncclAllGather);
      NICHE_FIND(ncclGetErrorString);
#undef NICHE_FIND
      return Status();
    }();
    if (!status.ok()) return status;
    return static_cast<const Nccl*>(&nccl);
  }
  Status check(int result, const char* call) const {
    if (result == kSuccess || result == kInProgress) return {};
    return dispatch::device_error(std::string(call) + ": " + ncclGetErrorString(result));
  }
};

class OverNccl final : public Collectives {
 public:
  OverNccl(const Nccl* nccl, NcclComm comm, int rank, Element element)
      : nccl_(nccl), comm_(comm), rank_(rank), type_(element == Element::kF32 ? kFloat32 : kBfloat16) {}
  ~OverNccl() override { abort(); }

  Status all_reduce(void* data, int64_t n, void* stream) override {
    if (aborted_.load()) return dispatch::device_error("NCCL: given up");
    return nccl_->check(nccl_->ncclAllReduce(data, data, static_cast<size_t>(n), type_, kSum, comm_, stream),
                        "ncclAllReduce");
  }
  Status scatter_gather(void* data, int64_t n, void* stream) override {
    if (aborted_.load()) return dispatch::device_error("NCCL: given up");
    const auto part = static_cast<size_t>(n / kRanks);
    char* mine = static_cast<char*>(data) + static_cast<size_t>(rank_) * part * (type_ == kFloat32 ? 4 : 2);
    NICHE_RETURN_IF_ERROR(nccl_->check(nccl_->ncclReduceScatter(data, mine, part, type_, kSum, comm_, stream),
                                       "ncclReduceScatter"));
    return nccl_->check(nccl_->ncclAllGather(mine, data, part, type_, comm_, stream), "ncclAllGather");
  }
  void abort() override {
    if (!aborted_.exchange(true)) (void)nccl_->ncclCommAbort(comm_);
  }

 private:
  const Nccl* const nccl_;
  const NcclComm comm_;
  const int rank_, type_;
  std::atomic<bool> aborted_{false};
};

}  // namespace

Result<std::unique_ptr<Collectives>> nccl_collectives(Stage* stage, int rank, uint32_t session,
                                                      Element element, const std::function<bool()>& give_up) {
  auto nccl = Nccl::load();
  if (!nccl.ok()) return nccl.status();
  NcclId id;
  if (rank == 0) {
    NICHE_RETURN_IF_ERROR((*nccl)->check((*nccl)->ncclGetUniqueId(&id), "ncclGetUniqueId"));
    std::memcpy(stage->name, &id, sizeof id);
    stage->name_of_session.store(session);
  } else {
    while (stage->name_of_session.load() != session) {
      if (give_up()) return dispatch::busy("NCCL: rank 0 did not come");
      std::this_thread::yield();
    }
    std::memcpy(&id, stage->name, sizeof id);
  }
  NcclComm comm = nullptr;
  NICHE_RETURN_IF_ERROR(
      (*nccl)->check((*nccl)->ncclCommInitRank(&comm, kRanks, id, rank), "ncclCommInitRank"));
  return std::unique_ptr<Collectives>(std::make_unique<OverNccl>(*nccl, comm, rank, element));
}

}  // namespace niche::two_gpus
