// How a kernel's launch on a CUDA device is written in the text of a program:
//
//   ENTRY grid=B*Lo/200 threads=256 shared=222720 per_sm=1 cluster=2 overlap
//
//   grid     blocks: the product of ceil(extent / divisor); without it one block
//   threads  a block; 1 to 1024, default 256
//   shared   dynamic shared memory of a block, bytes
//   per_sm   a persistent grid: at most so many blocks a multiprocessor
//   cluster  blocks a cluster: 1, 2, 4 or 8; the grid is rounded up to it
//   overlap  programmatic dependent launch (capability 90): the kernel waits itself for what ran before it
//
// A grid is a product over extents on purpose: it can be computed, and bounded, for every problem of a Guard.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"
#include "dispatch/definition.h"
#include "dispatch/devices/cuda/cuda_plan.h"
#include "evolve/cuda_template_family.h"

namespace niche::evolve {

// Of a directive's word: a decimal integer and nothing else.
bool parse_int(std::string_view text, int64_t& value);

// kInvalid: "threads=2000: 1 to 1024 are possible", "unknown axis 'Q' in grid".
dispatch::Result<dispatch::CudaPhase> cuda_phase_from_words(const dispatch::Definition& definition,
                                                            const CudaTarget& target,
                                                            const std::vector<std::string>& words);
// The other way.
std::string cuda_phase_to_words(const dispatch::Definition& definition, const dispatch::CudaPhase& phase);

// Phases: one to four, no two with one name. kInvalid names what is wrong, after `file`.
dispatch::Status check_cuda_plan(const dispatch::CudaLaunchPlan& plan, const std::string& file);

// Blocks that a phase wants at these extents (all axes), before a persistent grid is cut; -1: more than a launch can have.
int64_t cuda_blocks_wanted(const dispatch::CudaPhase& phase, const int64_t* axes);

// A launch plan of blocks as one of tasks, for what asks only where tiles end (correctness_points).
dispatch::LaunchPlan tiles_of(const dispatch::CudaLaunchPlan& plan);

}  // namespace niche::evolve
