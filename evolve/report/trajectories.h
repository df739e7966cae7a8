// Sessions as data for training: what was asked, what was answered, and what measuring said of it.
//
//   jsonl  one line a candidate: where it came from, its text where the store has it, outcome, gate, reason,
//          cost and speed-up, the whole Verdict of its last evaluation; of GPU candidates digest and bottleneck
//   sft    one line an answer of a model that gave a valid program better than its parent (or than the
//          library, for drafts): {"messages": [system, user, assistant], "reward": speed-up, ...}
//   dpo    pairs with one question: {"prompt": [system, user], "chosen", "rejected", "margin"}: programs of
//   the
//          same answer, and answers to questions that set out from the same parent (the prompt is then that
//          of the chosen one)
//
// Rewards are measured, never stated by a candidate. Thread-safety: pure functions.
#pragma once

#include <string>

#include "evolve/report/session_tree.h"

namespace niche::evolve::report {

// One JSON object a line. kInvalid: no such format.
dispatch::Result<std::string> export_session(const SessionTree& tree, const std::string& format);

}  // namespace niche::evolve::report
