// Route: the unit of rollout: which kernels answer a set of problems, and one atomic word that says who of
// them may.
//
// Many exact keys and a region may share a Route: then one word rolls all of them back.
//
// Roles: the rollout controller creates Routes and sets their state; the publisher puts them into tables;
// every serving
//   thread reads the word on every call.
// Invariants: (1) definition, kernels and index never change; other kernels mean another Route, published in
// the old one's
//   place. So every kernel that a table entry can reach was checked against that entry when it was published.
//   (2) The fallback is never null. (3) kCanary and kShadow only with a challenger; kIncumbent only with an
//   incumbent.
// Progress: set_state is one store; it acts on the next call of every thread, whatever the publisher is
// doing. Reclamation: shared_ptr for writers; the publisher keeps a Route until no reader can hold it. Cost:
// reading the word: one load from a dense array (4 bytes a Route: 1,024 routes fit 4 KiB of L1). Why not
// simpler: a state inside the table entry would need a publication for each rollback, and publications may
// have to
//   wait for a stalled reader; a state inside the Route's own line costs an L2 access a call among 1,024
//   routes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "dispatch/base/status.h"
#include "dispatch/published_kernel.h"

namespace niche::dispatch {

enum class RolloutState : uint8_t {
  kFallbackOnly = 0,  // the library is the winner, or nothing is verified yet
  kShadow,            // as before for answers; 1 in M calls also runs the challenger off the answer's path
  kCanary,            // the challenger answers its share; an equal share of the incumbent is the control arm
  kIncumbent,         // the incumbent answers all
  kRolledBack,        // the challenger is out; the incumbent, where there is one, else the fallback
  kQuarantined,       // incumbent and challenger are out; the fallback answers
};
inline constexpr int kRolloutStateCount = 6;
const char* rollout_state_name(RolloutState s);  // "fallback_only", "shadow", ...

// State and share in one 32-bit word: 3 bits of state, 29 of share.
class RolloutWord {
 public:
  constexpr RolloutWord() = default;
  // `share` of calls (or requests) for the challenger, and as much for the control arm: 0 .. 0.5.
  static constexpr RolloutWord make(RolloutState s, double share = 0) {
    const double clipped = share < 0 ? 0 : share > 0.5 ? 0.5 : share;
    return RolloutWord(static_cast<uint32_t>(clipped * kShareOne) << 3 | static_cast<uint32_t>(s));
  }
  static constexpr RolloutWord from_bits(uint32_t bits) { return RolloutWord(bits); }
  constexpr uint32_t bits() const { return bits_; }
  constexpr RolloutState state() const { return static_cast<RolloutState>(bits_ & 7); }
  constexpr double share() const { return (bits_ >> 3) / kShareOne; }

  enum class Arm : uint8_t { kRest, kChallenger, kControl };
  // Which arm a well-mixed 64-bit hash belongs to. The arms are exact shares of the hash's range.
  constexpr Arm arm(uint64_t hash) const {
    const uint32_t share = bits_ >> 3, u = static_cast<uint32_t>(hash >> 36);  // 28 bits
    return u < share ? Arm::kChallenger : u >= kShareUnits - share ? Arm::kControl : Arm::kRest;
  }

 private:
  static constexpr uint32_t kShareUnits = 1u << 28;
  static constexpr double kShareOne = kShareUnits;
  constexpr explicit RolloutWord(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};
inline constexpr uint32_t kIncumbentWord = RolloutWord::make(RolloutState::kIncumbent).bits();

// Dense rows of state words and their free list. One a dispatcher.
class RouteIndexPool;

class alignas(64) Route : public std::enable_shared_from_this<Route> {
 public:
  struct Spec {
    std::shared_ptr<const Definition> definition;
    std::shared_ptr<const Kernel> fallback;    // required: the best library form for these problems
    std::shared_ptr<const Kernel> incumbent;   // may be null
    std::shared_ptr<const Kernel> challenger;  // may be null
    RolloutState state = RolloutState::kFallbackOnly;
    double share = 0;
    std::string label;  // for explain: "M in [1,64]"
  };
  // kInvalid: a kernel of another Definition, no fallback, or a state that its kernels do not allow. kBusy:
  // the dispatcher's bound of routes is reached. Called through Dispatcher::make_route.
  static Result<std::shared_ptr<Route>> make(std::shared_ptr<RouteIndexPool> pool, Spec spec);
  ~Route();
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;

  const std::shared_ptr<const Definition>& definition() const { return spec_.definition; }
  const std::shared_ptr<const Kernel>& fallback() const { return spec_.fallback; }
  const std::shared_ptr<const Kernel>& incumbent() const { return spec_.incumbent; }
  const std::shared_ptr<const Kernel>& challenger() const { return spec_.challenger; }
  const std::string& label() const { return spec_.label; }
  // Where this Route's counters are (counters.h). Reused some time after the Route is gone.
  uint32_t index() const { return arms_.index; }
  // Salt of the rollout assignment: another Route, another split of the same requests.
  uint64_t salt() const { return arms_.salt; }

  // What calls read, on one line.
  struct Arms {
    const Kernel* fallback;
    const Kernel* incumbent;   // may be null
    const Kernel* challenger;  // may be null
    uint64_t salt;
    const std::atomic<uint32_t>* state;
    uint32_t index;
  };
  const Arms& arms() const { return arms_; }

  RolloutWord word() const { return RolloutWord::from_bits(state_->load(std::memory_order_relaxed)); }
  RolloutState state() const { return word().state(); }
  // kInvalid where invariant 3 would break. Wait-free; any thread; acts on the next call.
  Status set_state(RolloutState s, double share = 0);
  // Challenger out, whatever the state was. Wait-free, cannot fail.
  void roll_back() { set_word(RolloutState::kRolledBack, 0); }
  // Incumbent and challenger out: a fault or a wrong answer.
  void quarantine() { set_word(RolloutState::kQuarantined, 0); }

  const std::atomic<uint32_t>* state_word() const { return state_; }

 private:
  Route(std::shared_ptr<RouteIndexPool> pool, Spec spec, uint32_t index);
  void set_word(RolloutState s, double share);

  Arms arms_;
  std::atomic<uint32_t>* state_;
  Spec spec_;
  std::shared_ptr<RouteIndexPool> pool_;
};

}  // namespace niche::dispatch
