// Policy: decides which candidates to try next. Each policy is a file of its own; `make_policy` knows them by
// name.
//
// A policy is a pure state machine: no clock, no I/O, no chance but its seed's. The same seed and the same
// sequence of propose() and observed() give the same proposals, which is how a session is resumed and
// replayed. What it may look at is the space and the tree; what each costs is small beside one evaluation
// (measured: bench/search). Thread-safety: one owner.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"
#include "evolve/search/tree.h"

namespace niche::evolve::search {

struct Proposal {
  FamilyPoint candidate;
  std::string made_by;
  int parent = kNoNode;
  int second_parent = kNoNode;
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  // Up to `count` valid candidates that are not in `tree`, all different. Fewer: the space, or what the
  // policy can reach of it, is nearly exhausted; none: it is. The caller adds each to the tree before it
  // calls again.
  virtual std::vector<Proposal> propose(const Tree& tree, int count) = 0;
  // Node `id` got its first outcome. A later change of the outcome is not told: policies read it in the tree.
  virtual void observed(const Tree& tree, int id) {
    (void)tree;
    (void)id;
  }
  // No progress for long: begin a branch that knows nothing of the past. Policies without memory ignore it.
  virtual void restart(const Tree& tree) { (void)tree; }
};

// An evaluation of an earlier session on a near problem; its cost there, 0: it failed a gate.
struct PastResult {
  FamilyPoint candidate;
  double cost = 0;
};

struct PolicyOptions {
  uint64_t seed = 1;
  // Candidates known from elsewhere (best points of the nearest problem of earlier sessions), best first:
  // tried first.
  std::vector<FamilyPoint> warm_start;
  // What the nearest of these sessions evaluated. The default policy's model begins with it; the families'
  // seeds come after the first batch then, in case that it misleads. Points that the space does not have are left out.
  std::vector<PastResult> past{};
};

// kNotFound lists the names: "default", "random", "greedy", "evolutionary", "uct", "surrogate".
dispatch::Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const SearchSpace& space,
                                                      const PolicyOptions& options);
std::vector<std::string> policy_names();

}  // namespace niche::evolve::search
