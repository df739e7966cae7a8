#include "evolve/judge/bench.h"

#include <time.h>
#include <x86intrin.h>

#include <algorithm>
#include <cmath>

namespace niche::evolve::judge {
namespace {

using dispatch::ArgRole;
using dispatch::Status;

constexpr int64_t kSetBytesMax = int64_t{48} << 20;
// Values made a problem: enough sets that none can be learned, few enough that making them takes some 30 ms.
constexpr int64_t kSetElementsMax = 4 << 20;
constexpr uint32_t kSetPoison = 2;
// An observation of a tiny operator is the mean of several calls that take this long together.
constexpr double kObservationNs = 20000;
// Blocks that the supervisor times: shorter than a scheduler's turn, so that some are left alone.
constexpr double kBlockNs = 1e6;
constexpr int kBlockCallsMax = 5000, kBlocks = 10;

double now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

// The time stamp counter's rate against the system's clock, over 5 ms. Good to 1e-4: only reports use it,
// verdicts are ratios of ticks.
double measure_ticks_per_ns() {
  const double t0 = now_ns();
  const uint64_t c0 = __rdtsc();
  double t1 = t0;
  while (t1 - t0 < 5e6) t1 = now_ns();
  return static_cast<double>(__rdtsc() - c0) / (t1 - t0);
}

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t n = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n), values.end());
  return values[n];
}

double system_clock_ns(const Cell& cell, bool cpu) { return cpu ? cell.cpu_seconds() * 1e9 : now_ns(); }

Bench::Bench(const dispatch::OpSpec& op, const dispatch::Definition& definition, SharedArena* arena,
             Oracle* oracle, uint64_t seed, BlockClock clock)
    : op_(op),
      definition_(definition),
      arena_(arena),
      oracle_(oracle),
      random_(seed),
      clock_(std::move(clock)),
      ticks_per_ns_(measure_ticks_per_ns()) {}

Status Bench::place(BenchProblem& p) {
  const auto& args = definition_.schema().args;
  int64_t bytes = 1, elements = 1;
  for (int i = 0; i < static_cast<int>(args.size()); ++i)
    if (definition_.has_arg(i) && args[static_cast<size_t>(i)].role != ArgRole::kOut &&
        !args[static_cast<size_t>(i)].constant) {
      bytes += p.problem.arg_bytes(i);
      elements += p.problem.arg_elements(i);
    }
  const int64_t count =
      std::clamp<int64_t>(std::min(kSetBytesMax / bytes, kSetElementsMax / elements), 3, kSetsMax);
  for (int64_t s = 0; s < count; ++s) {
    ArgPlacements set{};
    for (int i = 0; i < static_cast<int>(args.size()); ++i) {
      const auto a = static_cast<size_t>(i);
      if (!definition_.has_arg(i) || args[a].role == ArgRole::kOut) continue;
      if (args[a].constant && s > 0) {
        set[a] = p.sets[0][a];
        continue;
      }
      // 64-byte aligned as allocators give it, at a random place in the page: equal offsets would collide in
      // the caches' sets.
      const int64_t shift = static_cast<int64_t>(random_() % 32) * 64;
      auto placed = arena_->place(p.problem.arg_bytes(i) + shift, 64, Side::kStart);
      if (!placed.ok()) return placed.status();
      placed->at += shift;
      placed->bytes -= shift;
      set[a] = *placed;
    }
    p.sets.push_back(set);
  }
  for (int i = 0; i < static_cast<int>(args.size()); ++i) {
    const auto a = static_cast<size_t>(i);
    if (!definition_.has_arg(i) || args[a].role == ArgRole::kIn) continue;
    auto verify = arena_->place(p.problem.arg_bytes(i), 64, Side::kEnd);
    if (!verify.ok()) return verify.status();
    p.verify[a] = *verify;
    if (args[a].role != ArgRole::kInOut) continue;
    auto work = arena_->place(p.problem.arg_bytes(i), 64, Side::kStart);
    if (!work.ok()) return work.status();
    p.work[a] = *work;
  }
  return {};
}

Status Bench::fill(BenchProblem& p) {
  if (p.sets.empty()) NICHE_RETURN_IF_ERROR(place(p));
  p.seeds.clear();
  p.constant_seed = random_() | 1;
  for (size_t s = 0; s < p.sets.size(); ++s) {
    p.seeds.push_back(random_());
    RunBuffers run;
    run.poison = kSetPoison;
    run.arg = p.sets[s];
    const auto& args = definition_.schema().args;
    for (size_t i = 0; s > 0 && i < args.size(); ++i)
      if (args[i].constant) run.arg[i] = {};
    NICHE_RETURN_IF_ERROR(
        oracle_->prepare({p.problem.axes, 0, p.seeds[s], p.constant_seed}, std::span(&run, 1)));
  }
  return {};
}

void Bench::describe(TimeCommand& c, const BenchProblem& p) {
  c.axes = p.problem.axes;
  c.sets = static_cast<int32_t>(p.sets.size());
  std::copy(p.sets.begin(), p.sets.end(), c.set);
  c.work = p.work;
  c.verify = p.verify;
  c.verify_pair = -1;
  c.seed = random_();
  c.calls =
      p.fallback_ns > 0 ? std::clamp(static_cast<int>(kObservationNs / p.fallback_ns), 1, kCallsMax) : 1;
  c.packed_bytes = c.workspace_bytes = 0;
  c.self_delay = 0;
}

Status Bench::find_best_form(Cell& cell, BenchProblem& p) {
  std::vector<int> forms;
  for (int f = 0; f < std::min(op_.fallback_count(), kFormsMax); ++f)
    if (op_.fallback_applies(f, definition_)) forms.push_back(f);
  std::vector<double> median;
  // First look, then the ones within reach of the best.
  for (int rounds : {3, 9}) {
    TimeCommand& c = cell.command().time;
    cell.command().kind = CellCommand::kTime;
    describe(c, p);
    c.kernel = kForms;
    c.forms = static_cast<int32_t>(forms.size());
    std::copy(forms.begin(), forms.end(), c.form);
    c.pairs = rounds;
    c.cold = p.cold ? 1 : 0;
    if (!cell.run(60))
      return dispatch::device_error(definition_.name() + " at " + p.problem.to_string() +
                                    ": a library form failed: " + cell.death().text);
    if (cell.reply().failed != 0)
      return dispatch::device_error(definition_.name() + ": " + cell.reply().text);
    const TimeReply& r = cell.reply().time;
    median.clear();
    for (size_t f = 0; f < forms.size(); ++f) {
      std::vector<double> ticks;
      for (int i = 0; i < r.pairs; ++i) ticks.push_back(r.pair[i].ticks[f]);
      median.push_back(median_of(std::move(ticks)));
    }
    const double best = *std::min_element(median.begin(), median.end());
    p.fallback_ns = best / ticks_per_ns_;
    p.form = forms[static_cast<size_t>(std::min_element(median.begin(), median.end()) - median.begin())];
    std::vector<int> near;
    for (size_t f = 0; f < forms.size(); ++f)
      if (median[f] < 1.5 * best) near.push_back(forms[f]);
    forms = near;
  }
  return {};
}

dispatch::Result<Bench::Outcome> Bench::measure(Cell& cell, BenchProblem& p, const Request& r) {
  TimeCommand& c = cell.command().time;
  cell.command().kind = CellCommand::kTime;
  describe(c, p);
  c.kernel = r.kernel;
  c.forms = 1;
  c.form[0] = p.form;
  c.pairs = std::min(r.pairs, kPairsInCommand);
  c.cold = r.cold ? 1 : 0;
  c.packed_bytes = r.plan->packed_bytes;
  c.workspace_bytes = r.plan->workspace_bytes;
  Outcome out;
  if (r.verify) {
    c.verify_pair = static_cast<int32_t>(random_() % static_cast<uint64_t>(c.pairs));
    poison(p);
  }
  if (!cell.run(r.cpu_seconds_max)) {
    out.died = true;
    return out;
  }
  if (cell.reply().failed != 0) return dispatch::device_error(definition_.name() + ": " + cell.reply().text);
  const TimeReply& reply = cell.reply().time;
  out.pairs = samples(reply);
  if (reply.arguments_changed != 0) {
    out.finding.ok = false;
    out.finding.reason = "changed the argument struct it was called with at " + p.problem.to_string();
    return out;
  }
  if (!r.verify) return out;
  const int set = reply.verified_set;
  if (set < 0 || set >= static_cast<int>(p.sets.size())) return out;
  auto found = check_verified(p, set);
  if (!found.ok()) return found.status();
  out.finding = *found;
  return out;
}

// In case the cell copies nothing.
void Bench::poison(const BenchProblem& p) {
  for (const Placement& v : p.verify)
    if (v.region_bytes != 0) std::fill_n(arena_->at(v.region), v.region_bytes, uint8_t{0x7f});
}

dispatch::Result<Finding> Bench::check_verified(const BenchProblem& p, int set) {
  if (set < 0 || set >= static_cast<int>(p.sets.size())) return Finding{};
  RunBuffers verify;
  verify.poison = kSetPoison;
  verify.arg = p.sets[static_cast<size_t>(set)];
  // The harness copied exactly these bytes: no slack to look at.
  for (size_t i = 0; i < definition_.schema().args.size(); ++i)
    if (p.verify[i].region_bytes != 0)
      verify.arg[i] = {p.verify[i].at, std::max<int64_t>(1, p.verify[i].bytes), p.verify[i].at,
                       p.verify[i].bytes};
  return oracle_->check({p.problem.axes, 0, p.seeds[static_cast<size_t>(set)], p.constant_seed}, p.form,
                        std::span(&verify, 1), true);
}

std::vector<PairSample> Bench::samples(const TimeReply& reply) const {
  std::vector<PairSample> list;
  const int n = std::clamp(reply.pairs, 0, kPairsInCommand);
  for (int i = 0; i < n; ++i)
    list.push_back({reply.pair[i].ticks[0] / ticks_per_ns_, reply.pair[i].ticks[1] / ticks_per_ns_,
                    reply.pair[i].dropped != 0});
  return list;
}

dispatch::Result<std::vector<PairSample>> Bench::measure_self(Cell& cell, BenchProblem& p, double delay,
                                                              int pairs) {
  TimeCommand& c = cell.command().time;
  cell.command().kind = CellCommand::kTime;
  describe(c, p);
  c.kernel = kSelf;
  c.forms = 1;
  c.form[0] = p.form;
  c.pairs = pairs;
  c.cold = p.cold ? 1 : 0;
  c.self_delay = delay;
  if (!cell.run(60)) return dispatch::device_error("self-test: " + cell.death().text);
  if (cell.reply().failed != 0) return dispatch::device_error("self-test: " + std::string(cell.reply().text));
  return samples(cell.reply().time);
}

dispatch::Result<Finding> Bench::supervise(Cell& cell, const BenchProblem& p, double library_ns, int threads,
                                           bool verify, SeenTimes& seen) {
  const int calls = std::clamp(static_cast<int>(kBlockNs / std::max(library_ns, 100.0)), 1, kBlockCallsMax);
  // Threads that wait for each other burn CPU time without bound; and where the system keeps no CPU clock for
  // another process its wall clock serves.
  const bool cpu = threads == 1 && cell.cpu_seconds() > 0;
  const auto now = [&] { return clock_(cell, cpu); };
  const int checked = static_cast<int>(random_() % kBlocks);
  for (int block = 0; block < kBlocks; ++block)
    for (int turn = 0; turn < 2; ++turn) {
      const int side = (block + turn) % 2;
      poison(p);
      cell.command().kind = CellCommand::kBlock;
      cell.command().block = {side, calls, static_cast<int32_t>(random_() % static_cast<uint64_t>(calls))};
      const double before = now();
      if (!cell.run(30)) return seen.died = true, Finding{};
      const double each = (now() - before) / calls;
      double& least = side == 0 ? seen.library_ns : seen.kernel_ns;
      if (least == 0 || each < least) least = each;
      if (cell.reply().failed != 0)
        return dispatch::device_error(definition_.name() + ": " + cell.reply().text);
      if (!verify || side == 0 || block != checked) continue;
      auto found = check_verified(p, cell.reply().time.verified_set);
      if (!found.ok() || !found->ok) return found;
    }
  return Finding{};
}

}  // namespace niche::evolve::judge
