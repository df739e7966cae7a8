// SpaceRecorder: evaluates every point of a TemplateSpace and writes them down for RecordedSpace.
// Restartable: what the file already holds is not measured again.
//
// Rounds measure all points in turn; then the best few are measured again, and only those fresh measurements
// count for them: what was chosen for being small is small by luck too, and the minimum of a space is what
// searches are measured against.
//
// Cost: compiling is most of it (0.05 to 1 s a point). Batches are the same in every round, so that a
// compiler that remembers (bench/search/record.sh) compiles each once. Thread-safety: one owner, in a process
// without other threads (the evaluator forks).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "evolve/evaluator.h"
#include "evolve/search/template_space.h"
#include "evolve/toolchain/cpp_toolchain.h"

namespace niche::evolve::replay {

struct RecordOptions {
  std::string path, name, note;
  int rounds = 2;
  int refine_rounds = 5;       // further measurements of the best
  double refine_share = 0.05;  // of the points that pass
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

// Different sources among the valid points.
int64_t count_sources(const search::TemplateSpace& space, const dispatch::Definition& definition,
                      const CpuTarget& target);

// Compiles what record_space will ask for, from the end on, and throws the results away: another core fills the
// compiler's memory meanwhile.
dispatch::Status compile_space(const search::TemplateSpace& space, const dispatch::Definition& definition,
                               const CpuTarget& target, const CppToolchain& toolchain,
                               const RecordOptions& options);

// Writes a recording as one line a point, with the cost that counts, in the grid's order: what is kept in the
// repository.
dispatch::Status pack_space(const std::string& recording, int rounds, const std::string& to);

}  // namespace niche::evolve::replay
