// Rank: one server of the two-rank group: two reduced operators (a row-parallel linear, and a sum of two PFFNs, one a
// rank) called in every step, kernels swapped by the group's numbered version while it serves, a captured graph of the
// same calls replayed every sixteenth step, and everything that it did on the stage.
//
// Thread-safety: one thread.
#pragma once

#include <string>

#include "bench/cuda/two_gpus/stage.h"

namespace niche::two_gpus {

struct RankOptions {
  int rank = 0;
  bool cuda = false;
  bool grouped = true;       // false: each rank publishes what it likes
  uint32_t session = 1;      // of communicators, that this process begins with
  uint64_t versions = 1000;  // ends at the step that serves this one
  uint64_t steps_max = 1u << 20;
  std::string board;  // the group's
};

// Serves until the end that both ranks see at the same step. The process's exit status: 0: fine; 3: given up, since the
// parent said that the group is stuck; else a failure that the stage's `problem` tells.
int serve_rank(Stage* stage, const RankOptions& options);

}  // namespace niche::two_gpus
