// Bench: the supervisor's side of timing: sets of inputs a problem, pairs from a cell, nanoseconds.
//
// Thread-safety: one owner thread. Memory: at most kSetBytesMax of inputs a problem, in the arena, for the
// session.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "evolve/judge/cell.h"
#include "evolve/judge/clock_check.h"
#include "evolve/judge/oracle.h"
#include "evolve/judge/points.h"

namespace niche::evolve::judge {

// One problem of the session, with what its timing needs.
struct BenchProblem {
  VarAxes var_axes;
  double weight = 1;
  bool cold = false;
  dispatch::Problem problem;
  int form = 0;            // the best library form
  double fallback_ns = 0;  // its median in the judged state

  // Filled by Bench::fill.
  std::vector<ArgPlacements> sets;
  std::vector<uint64_t> seeds;
  uint64_t constant_seed = 0;
  ArgPlacements work{}, verify{};
};

struct PairSample {
  double fallback_ns = 0, kernel_ns = 0;
  bool dropped = false;
};

// The clock that blocks are held against, in ns; only differences count. `cpu`: the CPU time of the cell's process, else
// the time of day.
using BlockClock = std::function<double(const Cell& cell, bool cpu)>;
double system_clock_ns(const Cell& cell, bool cpu);

class Bench {
 public:
  Bench(const dispatch::OpSpec& op, const dispatch::Definition& definition, SharedArena* arena,
        Oracle* oracle, uint64_t seed, BlockClock clock = system_clock_ns);

  // Places the sets (first time) and fills them with fresh values.
  dispatch::Status fill(BenchProblem& p);

  // Medians of each applicable form, slow ones dropped after a first look; the best one goes to p.form.
  // kDevice: a form failed.
  dispatch::Status find_best_form(Cell& cell, BenchProblem& p);

  struct Request {
    int kernel = 0;
    const dispatch::LaunchPlan* plan = nullptr;
    int pairs = 8;
    bool cold = false;
    bool verify = false;  // check the kernel's output of one random pair
    double cpu_seconds_max = 2;
  };
  struct Outcome {
    std::vector<PairSample> pairs;
    bool died = false;  // see cell.death()
    Finding finding;    // of the verified pair
  };
  // Pairs of best form and kernel. A Status: the library or the harness failed, not the kernel.
  dispatch::Result<Outcome> measure(Cell& cell, BenchProblem& p, const Request& r);

  // The harness against itself: pairs of the best form (first) and the same form made `delay` slower
  // (second).
  dispatch::Result<std::vector<PairSample>> measure_self(Cell& cell, BenchProblem& p, double delay,
                                                         int pairs);

  // Blocks of the cell's last measure(), timed by a clock that the supervisor reads: the least of each side
  // goes to `seen`. One block's outputs are checked: a kernel that works only when it is timed is found here.
  dispatch::Result<Finding> supervise(Cell& cell, const BenchProblem& p, double library_ns, int threads,
                                      bool verify, SeenTimes& seen);

 private:
  dispatch::Status place(BenchProblem& p);
  void describe(TimeCommand& c, const BenchProblem& p);
  std::vector<PairSample> samples(const TimeReply& reply) const;
  void poison(const BenchProblem& p);
  dispatch::Result<Finding> check_verified(const BenchProblem& p, int set);
  const dispatch::OpSpec& op_;
  const dispatch::Definition& definition_;
  SharedArena* arena_;
  Oracle* oracle_;
  std::mt19937_64 random_;
  BlockClock clock_;
  double ticks_per_ns_;
};

double median_of(std::vector<double> values);

}  // namespace niche::evolve::judge
