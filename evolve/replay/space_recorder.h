// SpaceRecorder: evaluates every point of a TemplateSpace and writes them down for RecordedSpace.
// Restartable: what the file already holds is not measured again.
//
// Cost: a point takes what its share of a screen does (some 60 ms of a 1 ms operator); each round measures
// all points once more, in another order. Thread-safety: one owner, in a process without other threads (the
// evaluator forks).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "evolve/evaluator.h"
#include "evolve/search/template_space.h"

namespace niche::evolve::replay {

struct RecordOptions {
  std::string path, name, note;
  int rounds = 2;
  int batch = 16;
  int64_t points_max = 20'000;  // a larger space is sampled, evenly, to this many points
  uint64_t seed = 1;
  std::function<bool()> keep_going;                              // empty: always
  std::function<void(int64_t done, int64_t total)> on_progress;  // after each batch
};

// kCorrupt: the file there is of another space; kIo: it cannot be written; kDevice: the operator cannot be
// measured.
dispatch::Status record_space(const search::TemplateSpace& space, const dispatch::Definition& definition,
                              const CpuTarget& target, const std::vector<SeenProblem>& problems,
                              Evaluator& evaluator, const RecordOptions& options);

}  // namespace niche::evolve::replay
