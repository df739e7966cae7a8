// Control: everything of a Runtime that has a thread, touches the disk or talks to a worker: cache and warm
// start, telemetry, planner, sessions, shadow comparison, rollout, probation.
//
// Roles: the control thread ticks (tick_seconds): drains records, plans, drives rollouts, publishes. The
// background thread, at idle priority, compares shadow copies and measures library forms. Callers of the
// public API come in under the lock.
// Invariants: (1) no caller of an operator ever waits for this class; (2) a kernel serves or is shadowed only
// after its probation mark is durable, or once it has served its probation; (3) what was rolled back is
// quarantined before anything else is published for its Definition.
// Progress: the lock is held for at most one tick's work (ms; a durable mark, some 10 ms).
// Bounds: every list below has one, stated where it is filled.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "dispatch/group_table.h"
#include "evolve/probe/permit_gate.h"
#include "kernels_cache/kernel_cache.h"
#include "runtime/core.h"
#include "runtime/explanation.h"
#include "runtime/form_meter.h"
#include "runtime/host_pressure.h"
#include "runtime/kernel_loader.h"
#include "runtime/latency_watch.h"
#include "runtime/planner.h"
#include "runtime/proposer_purse.h"
#include "runtime/rollout/flap_guard.h"
#include "runtime/rollout_driver.h"
#include "runtime/route_board.h"
#include "runtime/session_runner.h"
#include "runtime/shadow_checker.h"
#include "runtime/telemetry/telemetry.h"
#include "runtime/tuning_place.h"

namespace niche {
class Group;
struct GroupStatus;
struct Health;
class HttpServer;
}  // namespace niche

namespace niche::core {

class Control {
 public:
  static dispatch::Result<std::unique_ptr<Control>> start(std::shared_ptr<RuntimeCore> core);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // A child of fork() has none of the threads: it must leave this object alone.
  bool forked() const;

  // Runtime::op: a new call site. For a Definition's first one, its kernels of the cache are loaded and
  // published here, so that the first request is served by them.
  void on_handle(HandleState& handle);
  dispatch::Status force(std::string_view kernel);
  void pause_evolution(bool paused);
  dispatch::Result<Explanation> explain(const HandleState& handle,
                                        const std::vector<std::pair<std::string, int64_t>>& axes) const;
  std::string status() const;
  std::string metrics() const;
  Health health() const;
  int http_port() const;
  dispatch::Result<std::shared_ptr<Group>> join_group();
  dispatch::Status offer_to_group(std::shared_ptr<const dispatch::Kernel> kernel);
  int sessions_running() const { return sessions_running_.load(std::memory_order_relaxed); }

 private:
  // A kernel that was verified and does not serve, with the reason: for explain and status.
  struct Gone {
    std::string kernel, state, reason;
  };
  struct DefinitionState {
    DefinitionState(RuntimeCore& core, RuntimeCore::Known k, int on);
    RuntimeCore::Known known;
    const int device;  // CallFrame::device: 0: the host
    // What telemetry, planner and sessions know it by: its number, with the device above it.
    uint32_t place() const { return place_of(known.id, static_cast<uint32_t>(device)); }
    RouteBoard board;
    std::map<uint64_t, std::shared_ptr<const ResidentKernel>> residents;  // by Kernel::id
    std::deque<std::shared_ptr<const ResidentKernel>> waiting;            // for their rollout
    std::unique_ptr<RolloutDriver> rollout;                               // of board.challenger()
    rollout::FlapGuard flap;
    int64_t next_check_ns = 0;  // of `waiting`: looked at ten times a second
    bool due(int64_t now_ns) {
      if (now_ns < next_check_ns) return false;
      next_check_ns = now_ns + 100'000'000;
      return true;
    }
    std::set<kernels_cache::KernelId> known_records;  // loaded or refused for good: not tried again
    std::deque<Gone> gone;
    std::set<uint64_t> form_classes;                         // measured, or being measured
    std::unordered_map<uint64_t, int64_t> serving_since_ns;  // by Kernel::id
    std::unordered_map<uint64_t, uint64_t> flushed_calls;    // of them, in the cache already
    bool in_canary = false;
    std::unordered_map<uint64_t, IncumbentWatch> watches;   // by Kernel::id
    double gain_committed = 0, best_seen = 0;               // of the last session
    int tried = 0, tried_earlier = 0, session_kernels = 0;  // earlier: in sessions before the last
    int64_t session_since_ns = 0;
    std::array<uint64_t, evolve::kGateCount> rejected{}, rejected_earlier{};
    std::string refusal;                 // why the worker refused the last session
    mutable std::optional<bool> family;  // RuntimeConfig::has_family's answer, once asked
    // Of a Definition whose kernels the group chooses (control_group.cc); the board publishes nothing then.
    bool grouped = false;
    std::set<uint64_t> group_serving;                                   // by Kernel::id
    std::map<uint64_t, std::shared_ptr<dispatch::Route>> group_routes;  // by Kernel::id; 0: the library's
    bool dirty = false;           // the board changed: publish at the end of the tick
    bool yielding = false;        // the last session was asked to end for another Definition's sake
    TuningChoice tuned_on;        // the last session
    std::string publish_failure;  // the last one that was told
    // What the cache knows of the board's problems: sightings() at the last merge; kNothing: none of them.
    static constexpr uint64_t kNothing = UINT64_MAX;
    uint64_t remembered = 0;
    int64_t remember_at_ns = 0, remember_gap_ns = kRememberGapMinNs;
    std::string remember_failure;  // the last one that was told
  };
  // Between two merges of a Definition's problems: doubles from the first to the second, so that shapes which never end
  // cost a write now and then. A process that is killed loses what it first saw since the last one.
  static constexpr int64_t kRememberGapMinNs = 1'000'000'000, kRememberGapMaxNs = 256 * kRememberGapMinNs;
  // Definitions have 24 bits.
  static uint32_t place_of(uint32_t definition, uint32_t device) { return definition | device << 24; }
  // A cache directory: each device has an environment of its own, and so a directory.
  struct Shelf {
    std::unique_ptr<kernels_cache::KernelCache> cache;
    std::string problem;                   // why there is no cache, or why it cannot be written
    bool nothing_yet = false;              // read-only, and its directory holds nothing of this environment
    bool lost = false;                     // the directory is not where its path says
    kernels_cache::CacheCounters earlier;  // of caches whose directory was lost: counters only grow
    kernels_cache::StartupReport startup;
    bool can_mark = false;  // probation marks are possible
    int64_t mark_again_ns = 0;
    bool probation_mode = false;
  };
  struct Event {
    int64_t unix_ns;
    std::string kind, definition, text;
  };
  struct Counters {
    uint64_t sessions = 0, sessions_failed = 0, kernels_committed = 0, swaps = 0, rollbacks = 0,
             quarantines = 0;
    uint64_t shadow_matched = 0, shadow_mismatched = 0, shadow_skipped = 0, stale_bindings = 0,
             refused_kernels = 0;
    uint64_t publish_waits = 0, cache_moves = 0;
  };
  struct FormJob {
    uint32_t definition;
    uint64_t form_class;
    dispatch::Problem problem;
    std::shared_ptr<const dispatch::OpSpec> op;
  };
  struct FormFinding {
    uint32_t definition;
    uint64_t form_class;
    int form;
  };

  explicit Control(std::shared_ptr<RuntimeCore> core);

  // control_cache.cc
  void open_caches();
  void open_cache(int device);
  // The configured directory cannot be used: the log, or stderr where there is none, hears it once.
  void tell_unusable(const std::string& problem);
  Shelf& shelf(const DefinitionState& d) { return shelves_[static_cast<size_t>(d.device)]; }
  const Shelf& host() const { return shelves_[0]; }
  // Notices a cache directory that was renamed, replaced or removed, and opens the one at its path.
  void look_after_cache_place(Shelf& s);
  void move_to(Shelf& s, std::unique_ptr<kernels_cache::KernelCache> cache);
  void warm_start(DefinitionState& d);
  // Null: a miss, refused, or tried before; noted for explain.
  std::shared_ptr<const ResidentKernel> load_kernel(DefinitionState& d, const kernels_cache::KernelId& id);
  void learn_form(DefinitionState& d, const ResidentKernel& k);
  // Whether kernels can be put on probation. A run that could not begin is tried again every few seconds.
  bool may_mark(Shelf& shelf);
  bool put_on_probation(Shelf& shelf, const ResidentKernel& k);
  void quarantine(DefinitionState& d, const ResidentKernel& k, const std::string& reason);
  // Problems of earlier processes go on the board; those of this one, into the cache: one Definition's a call.
  void recall_problems(DefinitionState& d);
  void remember_problems(int64_t now_ns);
  dispatch::Status remember_problems(DefinitionState& d, int64_t now_ns);
  void remember_all_problems();  // at the end
  void look_after_probation(int64_t now_ns);
  void end_probation_mode();
  void flush_served();
  void find_new_records();
  void find_new_records(Shelf& s);

  // control.cc
  void run_control();
  void tick(int64_t now_ns);
  void run_background();
  DefinitionState& state_of(const RuntimeCore::Known& known, int device);
  void event(std::string kind, const std::string& definition, std::string text, dispatch::LogLevel level);
  static void note_gone(DefinitionState& d, Gone gone);
  // The kernel has left the board: its packed constants go, and explain says why.
  void retire(DefinitionState& d, const ResidentKernel& k, std::string state, std::string reason);

  // control_traffic.cc
  void drain(int64_t now_ns);
  // A record of the hot path; `ns`: of a timed call.
  void take_record(const dispatch::EventRecord& e, double ns, int64_t now_ns);
  void take_findings(int64_t now_ns);
  void check_bindings();
  void ask_for_form(DefinitionState& d, const dispatch::WideProblem& problem);
  double call_bytes(const DefinitionState& d, const int64_t* var_axes) const;
  static bool make_problem(const RuntimeCore::Known& known, const int64_t* var_axes, dispatch::Problem* p);
  void publish_dirty();
  std::shared_ptr<const dispatch::Kernel> resolve(uint64_t kernel_id) const;

  ExplainedKernel explain_kernel(const DefinitionState& d, const ResidentKernel& k,
                                 const dispatch::WideProblem& problem, const Explanation& e,
                                 std::string* library_because) const;
  dispatch::Status force_locked(std::string_view kernel);
  void force_what_arrived(int64_t now_ns);

  // control_rollout.cc
  void drive_rollouts(int64_t now_ns);
  void start_next_rollout(DefinitionState& d, int64_t now_ns);
  void begin_rollout(DefinitionState& d, const std::shared_ptr<const ResidentKernel>& k, int64_t now_ns);
  void watch_incumbent(DefinitionState& d, const dispatch::EventRecord& e, double ns, int64_t now_ns);
  void give_up(DefinitionState& d, rollout::Cause cause, int64_t now_ns);
  bool promises_more(const DefinitionState& d, const ResidentKernel& k) const;
  double exposures_per_s(uint32_t definition) const;
  void promote(DefinitionState& d, int64_t now_ns);
  void roll_back(DefinitionState& d, uint64_t kernel, const std::string& reason, int64_t now_ns);

  // control_group.cc
  struct GroupTrial {
    uint32_t definition = 0;
    std::shared_ptr<const ResidentKernel> kernel;  // null: none is on its way
    uint64_t version = 0, dropped_before = 0;
  };
  dispatch::Result<dispatch::Publisher::Placement> place(const dispatch::GroupChange& c);
  bool in_group(const DefinitionState& d) const;
  static std::shared_ptr<const ResidentKernel> resident_of(DefinitionState& d, std::string_view wire);
  void drive_group(int64_t now_ns);
  void follow_group(const GroupStatus& s, int64_t now_ns);
  void settle_trial(const GroupStatus& s, int64_t now_ns);
  void propose_withdrawals(const GroupStatus& s);
  void propose_next(const GroupStatus& s, int64_t now_ns);
  void withdraw_from_group(DefinitionState& d, const ResidentKernel& k, const std::string& reason);
  static double group_gain(DefinitionState& d, const GroupStatus& s, const dispatch::WideProblem& p);
  // What serves, by the board's choice or the group's.
  static std::vector<std::shared_ptr<const ResidentKernel>> serving_of(const DefinitionState& d);
  uint64_t calls_of(const DefinitionState& d, uint64_t kernel) const;

  // control_sessions.cc
  void find_worker();
  // Takes what it may cost out of the purse.
  evolve::ModelRequest model_request(const DefinitionState& d);
  // An operator without a family, and no proposer or one without money now: a session would have nothing to try.
  bool nothing_proposes(const DefinitionState& d) const;
  // Has it template points? True where that is not known.
  bool has_family(const DefinitionState& d) const;
  // What stands in explain and status: the session that runs, is planned, or why there is none.
  std::string session_text(const DefinitionState& d, int64_t now_ns) const;
  void run_sessions(int64_t now_ns);
  void plan(int64_t now_ns);
  void start_session(const telemetry::HotDefinition& hot, int64_t now_ns);
  TuningChoice place_for_session(const DefinitionState& d) const;
  void on_session_event(SessionRunner& runner, const evolve::SessionEvent& e, int64_t now_ns);

  const std::shared_ptr<RuntimeCore> core_;
  const uint64_t fork_generation_;
  std::unique_ptr<HttpServer> http_;

  mutable std::mutex mutex_;
  std::vector<Shelf> shelves_;  // the host's, then one a device
  std::unordered_map<uint32_t, std::unique_ptr<DefinitionState>> definitions_;  // by place()
  KernelLoader loader_;
  telemetry::Telemetry telemetry_;
  std::vector<telemetry::Sample> samples_;
  std::vector<telemetry::HotDefinition> ranking_;  // as of the last plan()
  uint64_t requests_seen_ = 0;
  double requests_per_s_ = 0;
  Planner planner_;
  LatencyWatch latency_;
  HostPressure pressure_;
  PressureSample last_pressure_;
  std::string worker_program_, evolution_off_, pause_reason_, plan_idle_;
  std::map<uint32_t, std::unique_ptr<SessionRunner>> sessions_;  // by place()
  std::vector<std::unique_ptr<TuningGate>> permits_;             // by device, from 1
  BusyWindow busy_;
  double ended_sessions_cpu_ = 0, running_sessions_cpu_ = 0;
  ProposerPurse purse_;
  std::string proposer_trouble_;
  std::string forced_;
  // The forced kernel arrived, or could not be put on probation: (again) then. 0: never.
  int64_t force_due_ns_ = 0;
  std::shared_ptr<Group> group_;  // null: not joined
  // The server's own kernels that the group may choose, by Definition and name. At most kOfferedMax.
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const dispatch::Kernel>> offered_;
  GroupTrial group_trial_;
  struct GroupDecline {
    int times = 0;
    int64_t not_before_ns = 0;
  };
  std::map<uint64_t, GroupDecline> group_declines_;    // by Kernel::id: proposals that a rank dropped
  std::map<uint64_t, std::string> group_withdrawals_;  // by Kernel::id: why the group is to go back
  uint64_t group_version_ = 0;                         // that follow_group has seen
  bool group_fault_told_ = false;
  Counters counters_;
  std::deque<Event> events_;  // at most kEventsMax
  int64_t started_ns_ = 0, last_shadow_refill_ns_ = 0, last_bindings_ns_ = 0, last_flush_ns_ = 0,
          last_plan_ns_ = 0, last_refresh_ns_ = 0;
  std::atomic<bool> owner_pause_{false};
  std::atomic<int> sessions_running_{0};  // not paused ones, as of the last tick

  // Shared with the background thread.
  std::mutex background_mutex_;
  std::condition_variable background_wake_;
  std::deque<FormJob> form_jobs_;        // at most kFormJobsMax
  std::vector<ShadowFinding> findings_;  // at most ShadowArena::kSlots between two ticks
  std::vector<FormFinding> form_findings_;
  bool background_stop_ = false;

  mutable std::mutex resolve_mutex_;
  std::unordered_map<uint64_t, std::weak_ptr<const dispatch::Kernel>> by_id_;

  std::mutex stop_mutex_;
  std::condition_variable stop_wake_;
  bool stop_ = false, told_unusable_ = false;
  std::thread control_thread_, background_thread_;

  static constexpr size_t kEventsMax = 256, kFormJobsMax = 64, kGoneMax = 32, kRankingMax = 64,
                          kWarmKernelsMax = 16, kOfferedMax = 256;
};

}  // namespace niche::core
