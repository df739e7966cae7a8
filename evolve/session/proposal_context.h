// What a model is told: a part that stays the same for a session (rules, operator, machine, how to answer),
// so that services cache it, and a part composed for the node: problems and their figures, measured attempts,
// the program to change, one bottleneck, what the knowledge base says about it.
//
// Thread-safety: pure functions of their arguments (and the library's index).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dispatch/op_spec.h"
#include "evolve/evaluator.h"
#include "evolve/session/program.h"
#include "kb/library.h"
#include "kb/skills.h"

namespace niche::evolve {

struct ProposalFacts {
  const dispatch::OpSpec* op = nullptr;
  const dispatch::Definition* definition = nullptr;
  CpuTarget target;
  std::vector<ProblemBaseline> baselines;
};

// One line of the history, a template point or a program.
struct Attempt {
  std::string name, note;
  double cost = 0;     // weighted; 0: failed
  std::string reason;  // of the failure
};

struct ProposalTask {
  std::string task;                 // "draft", "improve", "repair", "combine"
  std::string memory = "none";      // which attempts are shown; see Program
  std::string parent, parent_name;  // text and what it is called
  double parent_cost = 0;           // 0: it failed
  std::string second, second_name;  // for "combine"
  std::string failure;              // gate and reason, for "repair"; or why the last answer was no program
  std::vector<Attempt> attempts;    // worst first, so that a reader continues the row
  double best_cost = 1;
  std::string diagnosis;  // diagnosis.h's section on the parent, or on the best so far; empty: none
  std::string topic;      // that bottleneck's, for the knowledge base
  std::map<std::string, double> metrics;  // of that digest, for the knowledge base
  std::vector<kb::Hit> notes;
  std::vector<kb::Skill> skills;
};

// "memory", "compute" or "latency": by the operator's own counts and the library's time on the heaviest
// problem.
std::string likely_bottleneck(const ProposalFacts& facts);
kb::Query knowledge_query(const ProposalFacts& facts, const ProposalTask& task);

// `bytes_max` (0: none) is kept to by leaving out what a model can do without: of the stable part pages of rules, whole
// modules, the later tiers first; of the changing part the worst attempts, notes, findings. What is left then (operator,
// machine, form of an answer; problems, the program to change, what failed) is told whatever it takes.
std::string stable_part(const ProposalFacts& facts, const kb::Library* library, size_t bytes_max = 0);
std::string changing_part(const ProposalFacts& facts, const ProposalTask& task, size_t bytes_max = 0);

// The first line that says what is wrong, and what follows, at most `bytes`.
std::string clipped_error(const std::string& text, size_t bytes);

}  // namespace niche::evolve
