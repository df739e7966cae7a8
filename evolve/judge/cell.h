// Cell: a disposable process in which candidates run: their code is loaded before the walls go up, then they
// get buffers between guard pages and nothing else. It reports times and fills buffers; it decides nothing.
//
// A cell is forked from a supervisor without threads, has an empty environment, no descriptors but its
// channel, no files, no network (Landlock, seccomp), core dumps off, and dies with the supervisor. It serves
// many candidates one after the other; when one kills it, the supervisor knows which, and goes on with the
// rest in a new cell. Thread-safety: one owner thread. Cost: 1–10 ms to start (fork of the supervisor,
// dlopen), then some 30 µs a command.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dispatch/kernel.h"
#include "dispatch/op_spec.h"
#include "evolve/evaluator.h"
#include "evolve/judge/child.h"
#include "evolve/judge/wire.h"

namespace niche::evolve::judge {

// One kernel a cell can run.
struct CellKernel {
  int object = 0;  // index into CellSpec::objects
  dispatch::LaunchPlan plan;
};

struct CellSpec {
  std::shared_ptr<const dispatch::OpSpec> op;
  std::shared_ptr<const dispatch::Definition> definition;
  SharedArena* arena = nullptr;
  ChildStart child_start;
  int threads = 1;
  bool confine = true;
  DefencesOff defences_off;
  std::vector<std::span<const uint8_t>> objects;
  std::vector<CellKernel> kernels;
};

// Why a command gave no answer.
struct CellDeath {
  bool hung = false;
  Stage stage = Stage::kIdle;
  std::string text;          // "signal 11 (Segmentation fault) in phase 'k_main'"
  bool has_address = false;  // of the memory access that faulted
  uint64_t address = 0;
};

class Cell {
 public:
  // kCorrupt: a kernel's object could not be loaded (named by its index); kIo: no process.
  static dispatch::Result<std::unique_ptr<Cell>> make(const CellSpec& spec);

  // The command is written to the mailbox by the caller: command() first, then run().
  CellCommand& command() const { return *arena_->mailbox<CellCommand>(kCellCommandAt); }
  const CellReply& reply() const { return *arena_->mailbox<CellReply>(kCellReplyAt); }
  // True: answered. False: the cell is gone, see death().
  bool run(double cpu_seconds_max);
  bool alive() const { return child_->alive(); }
  const CellDeath& death() const { return death_; }
  double cpu_seconds() const { return child_->cpu_seconds(); }
  // "landlock+seccomp+rlimits": what holds in this cell.
  const std::string& confinement() const { return confinement_; }

 private:
  Cell() = default;
  SharedArena* arena_ = nullptr;
  std::unique_ptr<Child> child_;
  CellDeath death_;
  std::string confinement_;
};

}  // namespace niche::evolve::judge
