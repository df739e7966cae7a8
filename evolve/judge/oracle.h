// Oracle: the process that knows the right answers. It makes inputs, computes the fp64 reference and the best
// fallback's error, and compares what a candidate left behind.
//
// Forked before any cell, and the only process that ever holds reference outputs: a cell's memory, copied
// from the supervisor's, never does. It never runs a candidate. Cases are cached, so that many candidates
// share one reference. Thread-safety: one owner thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "dispatch/op_spec.h"
#include "evolve/defences.h"
#include "evolve/judge/child.h"
#include "evolve/judge/wire.h"
#include "evolve/verdict.h"

namespace niche::evolve::judge {

// What a check found.
struct Finding {
  bool ok = true;
  Gate gate = Gate::kCorrectness;
  std::string reason;
  double max_error = 0, rms_error = 0;
  std::optional<CaseId> id{};  // of the case that was checked
};

class Oracle {
 public:
  // `start`: see ChildStart; runs there with one thread. `cache_bytes`: references and inputs kept.
  static dispatch::Result<std::unique_ptr<Oracle>> make(
      std::shared_ptr<const dispatch::OpSpec> op, std::shared_ptr<const dispatch::Definition> definition,
      SharedArena* arena, std::function<void()> start, int64_t cache_bytes, DefencesOff off = {});

  // Fills each run's inputs, and its outputs and slack with that run's poison. The oracle keeps the inputs.
  dispatch::Status prepare(const CaseId& id, std::span<const RunBuffers> runs);
  // Computes the reference and form `form`'s error of a prepared case now, while somebody else runs the candidate:
  // check() finds them ready.
  dispatch::Status refer(const CaseId& id, int form);
  // One or two runs of a prepared case: written in full, alike (when `deterministic`), within the bound,
  // slack and inputs untouched. An error: the operator's own inputs, reference or fallback failed; no
  // candidate can be judged.
  dispatch::Result<Finding> check(const CaseId& id, int form, std::span<const RunBuffers> runs,
                                  bool deterministic);

 private:
  Oracle() = default;
  dispatch::Status call(OracleCommand::Kind kind, const CaseId& id, std::span<const RunBuffers> runs);
  SharedArena* arena_ = nullptr;
  std::unique_ptr<Child> child_;
};

}  // namespace niche::evolve::judge
