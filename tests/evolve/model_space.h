// ModelSpace: a schedule space with a known optimum: three families whose cost follows a small analytic model
// of a blocked kernel (register pressure, cache fit, tails, loop overhead, interactions), with regions that
// fail. The landscape's constants come from a seed, so that a test can hold over many of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "evolve/search/policy.h"
#include "evolve/search/rng.h"
#include "evolve/search/space.h"

namespace niche::evolve::search {

class ModelSpace final : public SearchSpace {
 public:
  explicit ModelSpace(uint64_t seed) {
    Rng rng(seed);
    for (int f = 0; f < 3; ++f) {
      Family family;
      family.name = "model.f" + std::to_string(f);
      family.params = {{"rows", {1, 2, 3, 4, 6, 8}},
                       {"cols", {8, 16, 24, 32, 48, 64}},
                       {"block", {16, 32, 64, 128, 256, 512}},
                       {"unroll", {1, 2, 4, 8}},
                       {"order", {0, 1, 2}},
                       {"stream", {0, 1}}};
      if (f == 1) family.params.push_back({"pack", {0, 1, 2}});
      if (f == 2) family.params.erase(family.params.begin() + 2);
      family.base = 1.0 + 0.35 * f * rng.uniform();
      family.registers = static_cast<int>(14 + rng.below(12));
      family.cache = std::exp2(rng.uniform(9.5, 14.5));
      family.extent = static_cast<int>(97 + rng.below(400));
      family.overhead = rng.uniform(0.3, 1.2);
      for (double& o : family.order_cost) o = rng.uniform(0, 0.25);
      family.order_cost[rng.below(3)] = 0;
      family.stream_gain = rng.uniform(-0.06, 0.06);
      family.salt = rng.next();
      families_.push_back(family);
    }
    optimum_ = std::numeric_limits<double>::infinity();
    for_each([&](const FamilyPoint& c) {
      ++valid_points_;
      const double t = cost(c);
      if (t > 0) ++passing_points_;
      if (t > 0 && t < optimum_) optimum_ = t, best_ = c;
    });
  }

  int family_count() const override { return static_cast<int>(families_.size()); }
  const std::string& family_name(int f) const override { return at(f).name; }
  const std::vector<Param>& params(int f) const override { return at(f).params; }
  bool valid(const FamilyPoint& c) const override {
    return value(c, "rows", 1) * value(c, "cols", 8) / 8 <= 40;  // declared: plainly too many registers
  }
  std::vector<Point> seeds(int f) const override { return {Point(params(f).size(), 0)}; }

  // What an evaluation would say: 0 where the candidate fails a gate.
  double cost(const FamilyPoint& c) const {
    const Family& f = at(c.family);
    const double rows = value(c, "rows", 1), cols = value(c, "cols", 8), block = value(c, "block", 64);
    const double unroll = value(c, "unroll", 1);
    const int order = value(c, "order", 0), stream = value(c, "stream", 0), pack = value(c, "pack", 0);
    if (order == 2 && static_cast<int>(block) % static_cast<int>(cols) != 0) return 0;  // a wrong tail: fails
    if (dispatch::mix64(f.salt ^ static_cast<uint64_t>(rows * 64 + unroll)) % 9 == 0) return 0;
    double t = f.base;
    const double live = rows * cols / 8 + rows + cols / 8;
    t *= 1 + 0.04 * std::max(0.0, live - f.registers);                // spills
    t *= 1 + f.overhead / (unroll * rows) + 0.4 / (cols / 8) / rows;  // loop overhead, reuse
    const double footprint = block * cols * (pack == 1 ? 1.0 : 1.6);
    t *= 1 + 0.12 * std::abs(std::log2(footprint / f.cache));  // cache fit
    const double tail = std::fmod(f.extent, cols);
    t *= 1 + 0.3 * (tail > 0 ? (cols - tail) / f.extent : 0) * cols / 16;  // tails
    t *= 1 + f.order_cost[order] * (1 + 0.5 * std::sin(rows + order));
    t *= 1 - f.stream_gain * (stream ? 1 : 0) * (block > 100 ? 1 : -0.5);
    t *= 1 + (pack == 2 ? 0.08 : pack == 1 ? 0.03 : 0);
    // A rugged part of about 2 %, as measured medians have it.
    return t * (1 + 0.02 * static_cast<double>(dispatch::hash_bytes(point_key(c), f.salt) >> 40) * 0x1p-24);
  }
  double optimum() const { return optimum_; }
  const FamilyPoint& best() const { return best_; }
  int64_t valid_points() const { return valid_points_; }
  int64_t passing_points() const { return passing_points_; }

  template <typename Visit>
  void for_each(Visit visit) const {
    for (int f = 0; f < family_count(); ++f) {
      FamilyPoint c{f, Point(params(f).size(), 0)};
      for (;;) {
        if (valid(c)) visit(c);
        size_t i = c.point.size();
        while (i > 0 && ++c.point[i - 1] == static_cast<int>(params(f)[i - 1].values.size()))
          c.point[--i] = 0;
        if (i == 0) break;
      }
    }
  }

 private:
  struct Family {
    std::string name;
    std::vector<Param> params;
    double base, cache, overhead, stream_gain;
    int registers, extent;
    double order_cost[3];
    uint64_t salt;
  };
  const Family& at(int f) const { return families_[static_cast<size_t>(f)]; }
  int value(const FamilyPoint& c, const char* name, int absent) const {
    const auto& ps = at(c.family).params;
    for (size_t i = 0; i < ps.size(); ++i)
      if (ps[i].name == name) return ps[i].values[static_cast<size_t>(c.point[i])];
    return absent;
  }
  std::vector<Family> families_;
  double optimum_ = 0;
  FamilyPoint best_;
  int64_t valid_points_ = 0, passing_points_ = 0;
};

// Runs a policy until a candidate within `target` of the optimum was evaluated; the evaluations that took, at
// most `budget`.
inline int evaluations_to_target(Policy& policy, const ModelSpace& space, double target, int budget,
                                 int batch) {
  Tree tree;
  while (tree.size() < budget) {
    const auto proposals = policy.propose(tree, std::min(batch, budget - tree.size()));
    if (proposals.empty()) break;
    std::vector<int> ids;
    for (const Proposal& p : proposals)
      ids.push_back(tree.add({p.parent, p.second_parent, 0, p.made_by, p.candidate}));
    for (int id : ids) {
      const double t = space.cost(tree.node(id).candidate);
      tree.set_outcome(id, t > 0 ? Outcome::kValid : Outcome::kFailed, t);
      policy.observed(tree, id);
      if (t > 0 && t <= target * space.optimum()) return id + 1;
    }
  }
  return budget;
}

}  // namespace niche::evolve::search
