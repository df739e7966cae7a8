// A kernel that a person or a model wrote as a file, judged by the same Evaluator as a generated one: what
// stands behind `niche evaluate KERNEL --op ...`.
//
// candidate_text.h says how the file describes itself. Thread-safety: as Evaluator. Errors name file and
// line.
#pragma once

#include <string>
#include <vector>

#include "evolve/candidate_text.h"

namespace niche::evolve {

struct FileJudgement {
  Judgement judgement;
  KernelSource source;                     // as the file describes itself
  std::vector<ProblemBaseline> baselines;  // what it was timed against
};

// Reads and judges a file (at most 1 MiB), for the CPU, or for the device of spec.target.cuda with `make`, that device's
// evaluator. kIo or kInvalid: no candidate could be made of it, a program for a device where none is named among them; what
// is wrong with the candidate itself is the Verdict's.
dispatch::Result<FileJudgement> evaluate_file(const std::string& path, EvaluatorSpec spec,
                                              EvaluatorOptions options = {},
                                              const EvaluatorFactory& make = make_evaluator);

}  // namespace niche::evolve
