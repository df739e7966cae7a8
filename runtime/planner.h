// Planner: which Definition to evolve next, for which problems, and whether now is a good time.
//
// Pure: it sees what the control plane measured and says what to do; no clock, no I/O. Thread-safety: one
// owner. Bounds: one record a Definition that ever had a session.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "evolve/worker_client.h"
#include "runtime/telemetry/telemetry.h"

namespace niche {

struct PlannerOptions {
  int sessions_max = 1;
  double hot_share_min = 0.005;  // of one core
  double hot_seconds_min = 0.5;
  double session_gap_seconds = 1;
  double cpu_share = 1.0;  // cores for all sessions, averaged over cpu_window_seconds
  double cpu_window_seconds = 60;
  double memory_share_max = 0.85;
};

// What is true now.
struct Conditions {
  int64_t now_ns = 0;
  int running = 0;                 // sessions
  double session_cpu_seconds = 0;  // of all sessions so far, ended ones included
  double memory_share = -1;        // -1: unknown
  int64_t throttled = -1;          // nr_throttled so far; -1: unknown
  bool p99_known = true;           // LatencyWatch::ready
  bool p99_suffers = false;        // LatencyWatch
  bool paused_by_owner = false;    // Runtime::pause_evolution
};

class Planner {
 public:
  explicit Planner(const PlannerOptions& options) : options_(options) {}

  // Should running sessions stand still, and why? Empty: no.
  std::string pause_reason(const Conditions& now);

  // The Definition to start a session for, if one is worth it and may start now: the most savable of those
  // that never had one, else the most savable. `ranking`: most savable first. Null: none; `why_not` says why
  // in a few words.
  const telemetry::HotDefinition* next(const std::vector<telemetry::HotDefinition>& ranking,
                                       const Conditions& now, std::string* why_not);

  // A running session as others see it.
  struct Progress {
    uint32_t definition = 0;
    int kernels = 0, tried = 0;
    double best_speedup = 0;
  };
  // Should it end now, because a hot Definition waits for its first session? One that has its first kernel
  // should, and one that found nothing in kFruitless candidates; both come again, with what they learnt.
  bool should_yield(const Progress& session, const std::vector<telemetry::HotDefinition>& ranking,
                    int64_t now_ns) const;
  static constexpr int kFruitless = 24;

  void session_started(uint32_t definition);
  enum class Outcome : uint8_t {
    kGained,   // committed a kernel
    kNothing,  // searched, found nothing faster
    kYielded,  // ended for another's sake before it could
    kRefused,  // the worker cannot evolve this operator
    kBusy,     // another process holds the lease
    kBroken,   // the worker died
  };
  void session_ended(uint32_t definition, Outcome outcome, int64_t now_ns);
  // "planned", "resting for 12 s after a session without gain", "none: not hot"
  std::string describe(uint32_t definition, int64_t now_ns) const;

 private:
  struct Record {
    int64_t first_hot_ns = 0, not_before_ns = 0;
    int sessions = 0, without_gain = 0;
    Outcome last = Outcome::kNothing;
    bool running = false;
  };
  bool hot_long_enough(const Record& r, int64_t now_ns) const;
  const PlannerOptions options_;
  std::unordered_map<uint32_t, Record> records_;
  int64_t last_end_ns_ = 0;
  // Token bucket of CPU seconds.
  double cpu_left_ = -1, cpu_seen_ = 0;
  bool cpu_paused_ = false;
  int64_t cpu_ns_ = 0;
  int64_t throttled_seen_ = -1, throttled_until_ns_ = 0;
};

// The problems of a ranking entry as a session's request wants them.
std::vector<evolve::SeenProblem> seen_problems(const telemetry::HotDefinition& hot, int var_axes);

}  // namespace niche
