#include "evolve/search/tree.h"

#include <algorithm>

namespace niche::evolve::search {

int Tree::add(Node node) {
  const int id = size();
  if (!by_key_.emplace(point_key(node.candidate), id).second) return kNoNode;
  node.outcome = Outcome::kInFlight;
  node.cost = 0;
  nodes_.push_back(std::move(node));
  return id;
}

void Tree::set_outcome(int id, Outcome outcome, double cost) {
  ++revision_;
  Node& n = nodes_[static_cast<size_t>(id)];
  valid_ += (outcome == Outcome::kValid) - (n.outcome == Outcome::kValid);
  failed_ += (outcome == Outcome::kFailed) - (n.outcome == Outcome::kFailed);
  n.outcome = outcome;
  n.cost = outcome == Outcome::kValid ? cost : 0;
  if (id == best_) {
    find_best();  // it may have become worse
  } else if (outcome == Outcome::kValid && (best_ == kNoNode || cost < node(best_).cost)) {
    best_ = id;
  }
}

void Tree::find_best() {
  best_ = kNoNode;
  for (int i = 0; i < size(); ++i)
    if (node(i).outcome == Outcome::kValid && (best_ == kNoNode || node(i).cost < node(best_).cost))
      best_ = i;
}

int Tree::find(const FamilyPoint& c) const {
  const auto it = by_key_.find(point_key(c));
  return it == by_key_.end() ? kNoNode : it->second;
}

std::vector<int> Tree::elites(int n) const {
  std::vector<int> ids;
  for (int i = 0; i < size(); ++i)
    if (node(i).outcome == Outcome::kValid) ids.push_back(i);
  std::sort(ids.begin(), ids.end(),
            [&](int a, int b) { return node(a).cost != node(b).cost ? node(a).cost < node(b).cost : a < b; });
  if (static_cast<int>(ids.size()) > n) ids.resize(static_cast<size_t>(n));
  return ids;
}

}  // namespace niche::evolve::search
