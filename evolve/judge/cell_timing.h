// TimingRig: one problem set up inside a cell as a server would call it, and the loop that times it in pairs.
//
// A call of the library: drop outputs, run the form, which allocates them. A call of the kernel: allocate
// outputs, take their addresses, run the phases. Both read inputs that rotate through several sets of values
// (a branch predictor learns repeated ones) and are either touched just before (warm) or flushed from all
// caches (cold). Outputs are freed after each observation, so that the allocator hands out the block it would
// in a server; pairs begin when calls no longer meet fresh pages. A pair is dropped when a context switch or a page
// fault hit it. Thread-safety: the cell's one thread.
#pragma once

#include <array>
#include <memory>
#include <random>
#include <vector>

#include "evolve/judge/cell_server.h"

namespace niche::evolve::judge {

class TimingRig {
 public:
  TimingRig(const CellSpec& spec, const std::vector<LoadedKernel>& kernels,
            const dispatch::Executor& executor, CrashPage* crash, const TimeCommand& command);
  ~TimingRig();

  dispatch::Status measure(TimeReply& reply);
  // Calls of one side in a row, for the supervisor's own clock.
  dispatch::Status repeat(int side, int calls, int verify_call, int32_t& verified_set);

 private:
  struct Set;
  void call(int side, Set& set);       // one call: a form or the kernel
  double observe(int side, Set& set);  // prepared and timed, ticks of one call
  void prepare(int side, Set& set);
  void warm(Set& set);
  void finish(Set& set);
  void copy_outputs(Set& set);
  dispatch::Status pack();
  // The set for the next call of a side; the kernel's never one that the library answered in the last two
  // pairs.
  size_t next_set(int side);
  bool is_kernel(int side) const { return command_.kernel >= 0 && side == 1; }
  int sides() const { return command_.kernel == kForms ? command_.forms : 2; }
  uint8_t* at(int64_t offset) const { return spec_.arena->at(offset); }

  const CellSpec& spec_;
  const dispatch::Definition& definition_;
  const dispatch::Executor& executor_;
  const LoadedKernel* kernel_ = nullptr;
  CrashPage* crash_;
  const TimeCommand command_;
  dispatch::Problem problem_;
  std::vector<std::unique_ptr<Set>> sets_;
  std::unique_ptr<uint8_t, void (*)(void*)> workspace_;
  uint8_t* packed_ = nullptr;                   // own pages, read-only once packed
  std::vector<size_t> unseen_;                  // sets the kernel has not met since the stack was cleared
  std::array<size_t, 2 * kCallsMax> recent_{};  // sets the library answered last
  size_t recent_at_ = 0;
  bool arguments_changed_ = false;
  std::mt19937_64 random_;
};

}  // namespace niche::evolve::judge
