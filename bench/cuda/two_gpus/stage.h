// Stage: what the processes of one tensor-parallel check share: the parent, which starts and kills ranks, and the
// ranks, which find each other here and leave their logs. A file in shared memory: what a killed rank wrote stays.
//
// Roles: the parent makes it and writes what kParent says; a rank writes its own places. Thread-safety: atomics.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace niche::two_gpus {

inline constexpr int kRanks = 2;

// One step of one rank, written before it counts as done.
struct StepRecord {
  uint32_t step = 0, version = 0;
  uint16_t session = 0;  // of communicators: 1, 2, ...
  uint8_t kernels[2]{};  // that answered the step's calls, as their launches said: see ReducedKernel::code
  uint8_t replayed = 0;  // a captured graph was replayed besides
  uint8_t done = 0;      // 1: its collectives came to their end; 2: they did not
  uint8_t pad[2]{};
};
static_assert(sizeof(StepRecord) == 16);

struct Stage {
  static constexpr uint32_t kStepsMax = 1u << 20;

  // The parent's.
  std::atomic<uint32_t> dead_session{0};  // in this one, and in all before it, a rank died
  std::atomic<uint32_t> stuck{0};         // no step came to its end for too long: abort and leave
  // Rank 0's, for each session: the communicator's name, and the first step of all.
  std::atomic<uint32_t> name_of_session{0};
  unsigned char name[128]{};
  std::atomic<uint64_t> first_step{1};
  struct Rank {
    std::atomic<uint32_t> ready{0};    // session that it is ready for
    std::atomic<uint64_t> entered{0};  // newest step
    std::atomic<uint64_t> version{0};  // that serves
    std::atomic<uint32_t> steps{0};    // records in its log
    std::atomic<uint32_t> wrong{0}, checked{0}, captures{0}, aborted{0};
    std::atomic<uint32_t> finished{0};
    std::atomic<uint64_t> swaps{0}, dropped{0}, waits{0}, lost_steps{0};
    std::atomic<uint64_t> restart_us{0};  // from "a rank died" to the first step of the next session
    std::atomic<uint64_t> abort_us{0};    // that giving up the communicator took
    char problem[256]{};
  } rank[kRanks];
  // What the host's stand-in for a communicator uses.
  struct Meeting {
    std::atomic<uint64_t> arrived[kRanks]{}, left[kRanks]{};
  } meeting[3];
  static constexpr size_t kElementsMax = 1 << 18;
  float values[kRanks][kElementsMax];
  StepRecord log[kRanks][kStepsMax];
};

// Maps the file; the parent makes it (zeroes). Null and *why: it cannot.
Stage* map_stage(const std::string& path, bool make, std::string* why);

}  // namespace niche::two_gpus
