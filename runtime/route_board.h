// RouteBoard: which kernel answers which problems of one Definition: turns kernels, their verdicts and the
// problems that traffic shows into table entries and regions.
//
// Roles: the control plane alone (under Control's lock) writes; serving threads see what publish() commits.
// Invariants:
//   (1) a problem's incumbent is the serving kernel with the best gain there whose Guard, layout and properties
//       fit, and only where that gain is above 1: never slower than the library. Where no kernel was timed at the
//       problem itself, who won the measured problems around it answers, as under (3); else a gain that was
//       measured far away counts for less (ResidentKernel::gain);
//   (2) at most one challenger at a time, and only where it promises more than the incumbent;
//   (3) unseen shapes between problems that were measured go to who won there, kernel or library
//       (measured_regions.h); others inside the Guard of a kernel that reaches far (ResidentKernel) are that
//       kernel's, an incumbent's before the challenger's; elsewhere the best library form of their class;
//   (4) at most kProblemsMax exact problems, least recently seen go first; those of earlier processes (recall())
//       count as seen.
// Progress: publish() does not wait for readers. Cost: publish: some µs a problem of this Definition.
// Why not simpler: one route a kernel would do if Guards did not overlap; sessions commit one kernel for
// small and another for large shapes, verified on the same box.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "dispatch/dispatcher.h"
#include "runtime/measured_regions.h"

namespace niche::core {

class RouteBoard {
 public:
  static constexpr size_t kProblemsMax = 4096;

  // `threads`: the executor's, `device`: CallFrame's; parts of every key.
  RouteBoard(dispatch::Dispatcher& dispatcher, uint32_t definition, uint32_t threads, uint32_t device = 0);
  ~RouteBoard();
  RouteBoard(const RouteBoard&) = delete;
  RouteBoard& operator=(const RouteBoard&) = delete;

  // ---- kernels
  void add_serving(std::shared_ptr<const ResidentKernel> kernel);
  // Null: no challenger.
  void set_challenger(std::shared_ptr<const ResidentKernel> kernel);
  void remove(uint64_t kernel_id);  // from either role
  const std::vector<std::shared_ptr<const ResidentKernel>>& serving() const { return serving_; }
  const std::shared_ptr<const ResidentKernel>& challenger() const { return challenger_; }
  bool serves(uint64_t kernel_id) const;
  bool challenges(uint64_t kernel_id) const { return challenger_ && challenger_->id() == kernel_id; }

  // ---- problems
  // True the first time in this process: the table may have to change for it.
  bool see(const dispatch::WideProblem& problem, int64_t now_ns);
  // Of an earlier process: has its entry from the next publish() on, as if it had been seen then. Ignored where
  // the board knows it, or is full.
  void recall(const dispatch::WideProblem& problem, int64_t last_ns);
  size_t problems() const { return problems_.size(); }
  struct Sighting {
    dispatch::WideProblem problem;
    int64_t last_ns = 0;
  };
  std::vector<Sighting> seen() const;  // the most recent first
  // Times that see() was true.
  uint64_t sightings() const { return sightings_; }
  const dispatch::KeyPrefix& prefix() const { return prefix_; }

  // The best library form of the class that a problem falls into (form_class()); replaces what was known.
  void set_form(uint64_t form_class, std::shared_ptr<const dispatch::Kernel> form);
  std::shared_ptr<const dispatch::Kernel> form(uint64_t form_class) const;  // form 0 where nothing is known

  // ---- effects
  // Makes the table what the board says: new problems alone, or everything after a change. kBusy: it waits
  // for a stalled reader and will be published by poll().
  // What failed stays to be published: unpublished() says so, and the next publish() tries it again.
  dispatch::Status publish();
  bool unpublished() const { return changed_ || !fresh_.empty(); }
  // State of every route that has the challenger. Acts on the next call; no publication.
  void set_rollout(dispatch::RolloutState state, double share);
  // Takes a kernel out of every route at once, then publishes without it.
  dispatch::Status withdraw(uint64_t kernel_id);

  // Calls that a kernel answered, as incumbent or challenger.
  uint64_t calls_of(uint64_t kernel_id) const;
  // What a problem would be served by now.
  struct Choice {
    std::shared_ptr<const ResidentKernel> incumbent, challenger;
    std::shared_ptr<const dispatch::Kernel> fallback;
  };
  Choice choose(const dispatch::WideProblem& problem) const;

 private:
  struct Key {
    uint64_t incumbent, challenger, fallback;  // Kernel::id, which is never reused; 0: none
    auto operator<=>(const Key&) const = default;
  };
  struct Seen {
    dispatch::WideProblem problem;
    int64_t last_ns = 0;
    const dispatch::Route* published = nullptr;
    bool live = false;  // in this process
  };
  dispatch::Result<std::shared_ptr<dispatch::Route>> route_for(const Choice& choice);
  dispatch::Status publish_problem(Seen& seen);
  dispatch::Status publish_regions();
  void forget_unused_routes();
  std::shared_ptr<const ResidentKernel> best_serving(const dispatch::WideProblem& problem) const;
  bool fits(const ResidentKernel& k, const dispatch::WideProblem& problem) const;

  dispatch::Dispatcher& dispatcher_;
  const uint32_t definition_;
  const dispatch::KeyPrefix prefix_;
  const int axes_;  // variable ones
  std::vector<std::shared_ptr<const ResidentKernel>> serving_;
  std::shared_ptr<const ResidentKernel> challenger_;
  std::vector<MeasuredRegion> measured_regions_;  // of serving_, as of the last publish()
  dispatch::RolloutState rollout_ = dispatch::RolloutState::kShadow;
  double share_ = 0;
  std::map<Key, std::shared_ptr<dispatch::Route>> routes_;
  std::unordered_map<dispatch::ProblemKey, Seen, dispatch::ProblemKeyHash> problems_;
  std::unordered_map<uint64_t, std::shared_ptr<const dispatch::Kernel>> forms_;
  uint64_t sightings_ = 0;
  std::vector<uint64_t> regions_;
  std::vector<dispatch::ProblemKey> fresh_;  // seen since the last publication
  bool changed_ = true;                      // kernels or forms changed: every entry is looked at anew
  std::unordered_map<uint64_t, uint64_t> calls_before_;  // by kernel id, of routes that are gone
};

// Problems of one class share a best library form: each variable axis by powers of four.
uint64_t form_class(const int64_t* var_axes, int count);
// The problems of a class, as a box.
dispatch::Guard form_box(uint64_t form_class, int count);

}  // namespace niche::core
