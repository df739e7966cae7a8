// CellServer: the harness inside a cell (cell.h).
//
// Thread-safety: one thread commands; kernels and fallbacks may use the Executor's threads while they run.
#pragma once

#include <vector>

#include "evolve/judge/cell.h"
#include "evolve/judge/host_args.h"

namespace niche::evolve::judge {

// One kernel's entries.
struct LoadedKernel {
  const dispatch::LaunchPlan* plan = nullptr;
  std::vector<NicheKernelFn> phases;
  NichePackFn pack = nullptr;
};

// Runs all phases as a server would: a phase with enough tasks is split over the executor.
void launch(const LoadedKernel& kernel, const NicheKernelArgs& args, const int64_t* axes,
            const dispatch::Executor& executor);

class CellServer {
 public:
  explicit CellServer(const CellSpec& spec);
  ~CellServer();
  // Loads, confines, answers once, then serves until the channel closes. Never returns normally.
  void run(int channel, const std::vector<int>& objects);

 private:
  dispatch::Status load(const std::vector<int>& objects);
  std::string confine();
  dispatch::Status test(const TestCommand& c, TestReply& reply);
  dispatch::Status block(const BlockCommand& c);
  void serve_one();

  // Opens exactly the buffers of a command; close_arena() shuts everything but the mailbox.
  void open(const Placement& p, bool writable);
  void close_arena();

  const CellSpec& spec_;
  dispatch::Executor executor_;
  std::vector<LoadedKernel> kernels_;
  CrashPage* crash_;
  std::unique_ptr<class TimingRig> rig_;  // of the last TimeCommand: what a BlockCommand repeats
};

}  // namespace niche::evolve::judge
