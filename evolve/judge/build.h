// Builds candidates: many in one compile, and the culprit named when one of them breaks it.
//
// Thread-safety: const; one owner thread. Cost: one compile when all is well; one more a culprit.
#pragma once

#include <span>
#include <vector>

#include "evolve/evaluator.h"
#include "evolve/toolchain/cpp_toolchain.h"

namespace niche::evolve::judge {

// Per candidate: an object and nothing wrong, or the gate that refused it.
struct BuiltCandidate {
  int object = -1;  // index into Build::objects; -1: refused
  Gate gate = Gate::kNone;
  std::string reason;
  bool undecided = false;  // the machine's fault: no compiler process, or no CPU for it
  double ms = 0;           // its share of the compile
  uint64_t code_hash = 0;  // of code, constants and plan, when it was compiled alone
};
struct Build {
  std::vector<std::vector<uint8_t>> objects;
  std::vector<BuiltCandidate> candidates;  // in order
};

// Symbols a plan needs from its object, without repeats.
std::vector<std::string> plan_symbols(const dispatch::LaunchPlan& plan);

// Never fails as a whole: what goes wrong is a candidate's reason. Candidates with different flags, or whose
// symbols clash, are compiled apart.
Build build_candidates(const CppToolchain& toolchain, std::span<const Candidate> candidates,
                       DefencesOff off = {});

}  // namespace niche::evolve::judge
