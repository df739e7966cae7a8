#include <sched.h>

#include <cstring>

#include "bench/cuda/two_gpus/collectives.h"

namespace niche::two_gpus {
namespace {

using dispatch::Status;

class Host final : public Collectives {
 public:
  Host(Stage* stage, int rank, uint32_t session) : stage_(stage), rank_(rank), session_(session) {}

  Status all_reduce(void* data, int64_t n, void*) override { return sum(0, static_cast<float*>(data), n); }
  Status scatter_gather(void* data, int64_t n, void*) override {
    NICHE_RETURN_IF_ERROR(sum(1, static_cast<float*>(data), n));
    return meet(2);
  }
  void abort() override { aborted_.store(true); }

 private:
  Status sum(int kind, float* data, int64_t n) {
    if (n > static_cast<int64_t>(Stage::kElementsMax)) return dispatch::invalid("host collective: too long");
    std::memcpy(stage_->values[rank_], data, static_cast<size_t>(n) * sizeof(float));
    NICHE_RETURN_IF_ERROR(meet(kind));
    for (int64_t i = 0; i < n; ++i) data[i] = stage_->values[0][i] + stage_->values[1][i];
    return leave(kind);
  }
  // Both ranks have written; then both have read.
  Status meet(int kind) { return wait(stage_->meeting[kind].arrived, ++counts_[kind]); }
  Status leave(int kind) { return wait(stage_->meeting[kind].left, counts_[kind]); }
  Status wait(std::atomic<uint64_t>* place, uint64_t count) {
    // The session is part of the count: what a dead rank left there is none of this session's.
    const uint64_t mine = uint64_t{session_} << 32 | count;
    place[rank_].store(mine);
    while (place[1 - rank_].load() < mine) {
      if (aborted_.load() || stage_->stuck.load() != 0 || stage_->dead_session.load() >= session_)
        return dispatch::device_error("host collective: given up");
      ::sched_yield();
    }
    return {};
  }

  Stage* const stage_;
  const int rank_;
  const uint32_t session_;
  std::atomic<bool> aborted_{false};
  uint64_t counts_[3] = {};
};

}  // namespace

dispatch::Result<std::unique_ptr<Collectives>> host_collectives(Stage* stage, int rank, uint32_t session) {
  return std::unique_ptr<Collectives>(std::make_unique<Host>(stage, rank, session));
}

}  // namespace niche::two_gpus
