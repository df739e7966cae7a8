// Session: one evolution run for one Definition: propose a batch, screen it, record it; judge the best
// unjudged candidate whenever that would pay; commit what is FASTER at once; until a budget is spent, the
// target reached, or nothing more is found.
//
// It owns no process, file or clock: everything comes in through SessionParts, so that it runs the same in a
// worker, in `niche evolve`, in a replay and under test. Thread-safety: one owner thread; run() calls back on
// it. Progress: run() returns at most about 100 ms after the wall limit or after stop() turned true, plus
// what the evaluator takes to notice (evaluator.h). Memory: some kB a candidate.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dispatch/base/clock.h"
#include "evolve/evaluator.h"
#include "evolve/search/template_space.h"
#include "evolve/session/kernel_sink.h"
#include "evolve/session/model_search.h"
#include "evolve/session/recorder.h"

namespace niche::evolve {

// Pointers must outlive the session.
struct SessionParts {
  const dispatch::OpRegistry* ops = nullptr;
  const FamilyRegistry* families = nullptr;
  CpuTarget target;
  EvaluatorFactory make_evaluator;
  EvaluatorOptions evaluator_options;  // seed and keep_going are the session's own
  KernelSink* sink = nullptr;          // null: nothing is committed (a rehearsal)
  store::Store* store = nullptr;       // null: nothing is recorded, nothing resumed, no warm start
  const dispatch::Clock* clock = nullptr;
  std::function<void(const SessionEvent&)> on_event;  // empty: nobody listens
  std::function<bool()> stop;                         // asked between steps; empty: never
  ModelParts model;                                   // programs beside template points; default: none
  bool profile = false;  // at the end, the evaluator's profiler looks at the best candidate
};

class Session {
 public:
  virtual ~Session() = default;

  // kInvalid, kNotFound: the request (its Definition, problems, policy); kUnsupported: no family of this
  // operator has a valid point here, and no model is there to write programs. With request.resume, a session of this Definition that did not end is
  // taken up: its seed, policy and recorded results rule, the request's budgets hold anew.
  static dispatch::Result<std::unique_ptr<Session>> create(const SessionRequest& request, SessionParts parts);

  // The last event: kDone with the reason, or kFailed when no candidate could be judged at all.
  virtual SessionEvent run() = 0;
  virtual const std::string& id() const = 0;
  virtual const search::Tree& tree() const = 0;
};

// What the machine offers generated code, for calls of `threads` threads.
CpuTarget detect_target(int threads);
std::string arch_name(const CpuTarget& target);  // "cpu.avx2": the store's key for reuse

}  // namespace niche::evolve
