// Verifier: runs one kernel on one case inside a cell and has the oracle judge what it left behind.
//
// Each case runs twice, with different buffers (end against the upper guard page; start against the lower
// one, or shifted so that pointers are no better aligned than the Guard promises), different contents of
// outputs and workspace, and a different split of the tasks. So one case shows out-of-bounds accesses on both
// sides, elements not written, changed inputs, reliance on old contents, dependence on the split, and the
// error. Thread-safety: one owner thread. Cost: two launches plus about 100 µs; the first use of a case adds
// its reference.
#pragma once

#include "evolve/judge/cell.h"
#include "evolve/judge/oracle.h"
#include "evolve/template_family.h"

namespace niche::evolve::judge {

struct VerifyRequest {
  int kernel = 0;  // index in the cell
  const KernelSource* source = nullptr;
  CaseId id;
  int form = 0;  // library form whose error is the yardstick
  double cpu_seconds_max = 2;
  bool threads = false;  // the second run uses the executor's threads
};

class Verifier {
 public:
  Verifier(const dispatch::OpSpec& op, std::shared_ptr<const dispatch::Definition> definition,
           SharedArena* arena, Oracle* oracle)
      : op_(op), definition_(std::move(definition)), arena_(arena), oracle_(oracle) {}

  // What is wrong with the kernel, if anything. After a crash or hang (Finding not ok) the cell is gone. A
  // Status: the operator or the machinery failed.
  dispatch::Result<Finding> verify(Cell& cell, const VerifyRequest& r);

 private:
  dispatch::Result<Finding> verify_placed(Cell& cell, const VerifyRequest& r,
                                          const dispatch::Problem& problem);
  dispatch::Status place(const VerifyRequest& r, const dispatch::Problem& problem, RunBuffers& run,
                         TestCommand& test, Side side);
  std::string run_once(Cell& cell, const VerifyRequest& r, const RunBuffers& run, const TestCommand& test);
  std::string describe_death(const Cell& cell, const VerifyRequest& r, const RunBuffers& run,
                             const TestCommand& test) const;

  const dispatch::OpSpec& op_;
  std::shared_ptr<const dispatch::Definition> definition_;
  SharedArena* arena_;
  Oracle* oracle_;
};

}  // namespace niche::evolve::judge
