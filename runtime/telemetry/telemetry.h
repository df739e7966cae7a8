// Telemetry: where device time goes, and where evolution could save some of it, in bounded memory.
//
// Fed by the aggregator with calls already summed by (Definition, axes, rung); answers the planner with
// Definitions ranked by the device time that could be saved, each with the problems that stand for its
// traffic. Frequent problems come from a weighted Space-Saving sketch; traffic that never repeats a shape is
// represented by a weighted random sample of the Definition, so that a session sees a picture of the tail
// too. Everything decays.
//
// Pure: no clock, no I/O, no hidden randomness (the seed is an option). Thread-safety: one owner (the
// aggregator's thread). Bounds: `problems_max` sketch entries, `definitions_max` Definitions (further ones
// are counted in `untracked_ns`), kTailSamples samples each; a million distinct shapes change none of them.
// Cost: some 200 ns a sample; ranking sorts the sketch: 1 ms at 4,096 entries. Control plane.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "dispatch/definition.h"
#include "dispatch/fallback_reason.h"
#include "runtime/telemetry/heavy_hitters.h"
#include "runtime/telemetry/reuse.h"

namespace niche::telemetry {

using Axes = std::array<int64_t, dispatch::kMaxVarAxes>;  // Definition::var_axes() order, unused ones 0

// Calls of one kind since the last feed.
struct Sample {
  uint32_t definition = 0;  // the dispatcher's number
  uint32_t site = 0;
  Axes axes{};
  dispatch::Rung rung = dispatch::Rung::kFallback;
  dispatch::FallbackReason reason = dispatch::FallbackReason::kNone;
  int64_t calls = 0;
  double ns = 0;     // device time of those calls, all together (timed calls scaled up)
  double bytes = 0;  // OpSpec::cost bytes of those calls, all together; 0: unknown
};

// One problem with its share of the Definition's savable time.
struct HotProblem {
  Axes axes{};
  double weight = 0;  // sums to 1 over the Definition
  // Lately answered without an entry of its own: by the fallback for want of one, or by a region.
  bool unseen = false;
  bool cold = false;  // most of its calls come from sites in the cold state
};

struct HotDefinition {
  uint32_t definition = 0;
  double share = 0;             // of all device time, 0..1
  double device_ns_per_s = 0;   // device time a second of time
  double savable_ns_per_s = 0;  // what the ranking sorts by
  double calls_per_s = 0;
  double unseen_share = 0;           // of its device time
  double fallback_share = 0;         // of its device time, for any reason
  double tail_share = 0;             // of its savable time: problems too rare to be held one by one
  std::vector<HotProblem> problems;  // heaviest first, at most TelemetryOptions::problems_per_definition
};

struct TelemetryOptions {
  size_t problems_max = 4096;
  size_t definitions_max = 1024;
  size_t problems_per_definition = 64;
  int64_t half_life_ns = int64_t{30} * 1'000'000'000;
  // Share of a call's time that evolution may save, before anything is known of the Definition (set_saving).
  double saving_on_fallback = 0.3;
  double saving_on_region = 0.15;   // a niche's kernel serves a shape it was not tuned for
  double saving_on_evolved = 0.03;  // the exact kernel may still improve
  uint64_t seed = 1;
  ReuseTracker::Options reuse;
};

class Telemetry {
 public:
  static constexpr size_t kTailSamples = 32;

  explicit Telemetry(const TelemetryOptions& options);
  ~Telemetry();

  void add(std::span<const Sample> samples, int64_t now_ns);

  // What a session, or a roofline, told about a Definition: shares of a call's time that may be saved while
  // the fallback answers, and while an evolved kernel does. Kept until set again or the Definition is
  // forgotten.
  void set_saving(uint32_t definition, double on_fallback, double on_evolved);

  // Most savable time first; at most `max`. Ties by number. const: does not move time on.
  std::vector<HotDefinition> ranking(size_t max) const;

  ReuseTracker& reuse() { return reuse_; }
  const ReuseTracker& reuse() const { return reuse_; }
  double total_ns_per_s() const;
  size_t definitions() const { return definitions_.size(); }
  size_t problems() const { return hitters_.entries().size(); }
  // Device time of Definitions past the bound, not decayed.
  double untracked_ns() const { return untracked_ns_; }

 private:
  struct ProblemKey {
    uint32_t definition = 0;
    Axes axes{};
    bool operator==(const ProblemKey&) const = default;
  };
  struct ProblemHash {
    size_t operator()(const ProblemKey& k) const;
  };
  struct ProblemInfo {
    double weight = 0;  // since it is held, stored units: splits of it below
    double unseen = 0, cold = 0;
  };
  struct TailSample {
    double priority = 0;  // Gumbel-max: log(weight) - log(-log u); the largest kTailSamples stay
    Axes axes{};
    bool unseen = false, cold = false;
  };
  struct PerDefinition {
    double ns = 0, savable = 0, calls = 0, unseen_ns = 0, fallback_ns = 0;  // stored units
    double on_fallback, on_evolved, on_region;
    std::vector<TailSample> tail;  // a min-heap by priority
  };

  PerDefinition* definition(uint32_t id);
  double saving(const PerDefinition& d, const Sample& s) const;
  void sample_tail(PerDefinition& d, const Sample& s, double weight, bool unseen, bool cold);
  HotDefinition describe(
      uint32_t id, const PerDefinition& d,
      std::vector<const HeavyHitters<ProblemKey, ProblemHash, ProblemInfo>::Entry*> held) const;

  TelemetryOptions options_;
  ForwardDecay decay_;
  HeavyHitters<ProblemKey, ProblemHash, ProblemInfo> hitters_;
  std::unordered_map<uint32_t, PerDefinition> definitions_;
  ReuseTracker reuse_;
  std::vector<SiteInterval> interval_;
  double total_ns_ = 0;  // stored units
  double untracked_ns_ = 0;
  uint64_t draws_ = 0;
};

// Can a call that the fallback answered for this reason ever be answered by an evolved kernel?
bool evolution_may_help(dispatch::FallbackReason reason);

}  // namespace niche::telemetry
