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
  int part = 0, parts = 1;                                       // compile_*: of the batches, every parts-th
  std::function<bool()> keep_going;                              // empty: always
  std::function<void(int64_t done, int64_t total)> on_progress;  // after each batch
};

// kCorrupt: the file there is of another space; kIo: it cannot be written; kDevice: the operator cannot be
// measured.
dispatch::Status record_space(const search::TemplateSpace& space, const dispatch::Definition& definition,
                              const CpuTarget& target, const std::vector<SeenProblem>& problems,
                              Evaluator& evaluator, const RecordOptions& options);

// Different kernels among the valid points.
int64_t count_sources(const search::TemplateSpace& space, const dispatch::Definition& definition,
                      const CpuTarget& target);

// Compiles what record_space will ask for, from the end on, and throws the results away: other cores fill the
// compiler's memory meanwhile.
dispatch::Status compile_space(const search::TemplateSpace& space, const dispatch::Definition& definition,
                               const CpuTarget& target, const CppToolchain& toolchain,
                               const RecordOptions& options);

// The same in pieces, for a machine with many cores: each round of measurements and each refinement goes to a
// recording of its own (options.path), so that several can be measured side by side. A refinement measures the
// best once by what the recordings of the rounds say. Errors as record_space; kNotFound: no such recording.
dispatch::Status record_round(const search::TemplateSpace& space, const dispatch::Definition& definition,
                              const CpuTarget& target, const std::vector<SeenProblem>& problems,
                              Evaluator& evaluator, const RecordOptions& options, int round);
dispatch::Status record_refinement(const search::TemplateSpace& space, const dispatch::Definition& definition,
                                   const CpuTarget& target, const std::vector<SeenProblem>& problems,
                                   Evaluator& evaluator, const RecordOptions& options,
                                   const std::vector<std::string>& rounds, int refinement);
dispatch::Status compile_refinement(const search::TemplateSpace& space,
                                    const dispatch::Definition& definition, const CpuTarget& target,
                                    const CppToolchain& toolchain, const RecordOptions& options,
                                    const std::vector<std::string>& rounds, int refinement);

// Writes recordings of one space as one line a point, with the cost that counts, in the grid's order: what is
// kept in the repository. Of a point's measurements in `recordings` the first `rounds` are rounds, later ones
// and those in `refinements` are fresh ones. kCorrupt: they are not of one space.
dispatch::Status pack_space(const std::vector<std::string>& recordings,
                            const std::vector<std::string>& refinements, int rounds, const std::string& to);

// Writes into a packed space which of its points are one kernel at the problems of `space` (anew where it is written
// there), each with its own cost as before; one without such points stays as it is. The points need not be valid on this machine. kNotFound: `space` lacks a family or a point of it.
dispatch::Status number_kernels(const search::TemplateSpace& space, const dispatch::Definition& definition,
                                const CpuTarget& target, const std::string& path);

}  // namespace niche::evolve::replay
