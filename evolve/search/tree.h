// Tree: what a search has proposed and learnt: one node a candidate, its parents, the operator that made it,
// and the outcome. Policies read it; the session (or a replay) writes it.
//
// Thread-safety: one owner. Memory: some 200 bytes a node. Invariants:
//   1. Ids are dense and in order of proposal; a parent's id is smaller than its child's.
//   2. No two nodes have the same candidate.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "evolve/search/space.h"

namespace niche::evolve::search {

inline constexpr int kNoNode = -1;

enum class Outcome : uint8_t {
  kInFlight,  // proposed, no result yet
  kValid,     // passed its gates: `cost` counts
  kFailed,    // failed a gate
};

struct Node {
  int parent = kNoNode;         // kNoNode: a draft
  int second_parent = kNoNode;  // of a crossover
  int batch = 0;
  std::string made_by;  // the operator: "seed", "mutate", ...
  FamilyPoint candidate;
  Outcome outcome = Outcome::kInFlight;
  double cost = 0;  // kernel time / fallback time, weighted by traffic; smaller is better
};

class Tree {
 public:
  // The new node's id; kNoNode: the candidate is already there.
  int add(Node node);
  // Sets or replaces an outcome (a judge's finer measurement overrules a screen). Requires: id exists, and
  // outcome == kValid implies a finite cost > 0.
  void set_outcome(int id, Outcome outcome, double cost = 0);

  int size() const { return static_cast<int>(nodes_.size()); }
  const Node& node(int id) const { return nodes_[static_cast<size_t>(id)]; }
  bool contains(const FamilyPoint& c) const { return by_key_.contains(point_key(c)); }
  int find(const FamilyPoint& c) const;  // kNoNode: not there

  int best() const { return best_; }  // the valid node of the smallest cost; the first of equals
  int valid_count() const { return valid_; }
  int failed_count() const { return failed_; }
  // Grows with every outcome that is set: what was learnt from the tree at one revision holds until the next.
  int64_t revision() const { return revision_; }
  int in_flight() const { return size() - valid_ - failed_; }
  // Ids of the `n` best valid nodes, best first. O(size log size).
  std::vector<int> elites(int n) const;

 private:
  void find_best();
  std::vector<Node> nodes_;
  std::unordered_map<std::string, int> by_key_;
  int best_ = kNoNode, valid_ = 0, failed_ = 0;
  int64_t revision_ = 0;
};

}  // namespace niche::evolve::search
