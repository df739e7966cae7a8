#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <set>

#include "evolve/search/forest.h"
#include "evolve/search/gaussian_process.h"
#include "evolve/search/operator_bandit.h"
#include "evolve/search/policy.h"
#include "evolve/search/stagnation.h"
#include "tests/evolve/model_space.h"

namespace niche::evolve::search {
namespace {

std::unique_ptr<Policy> make(const std::string& name, const SearchSpace& space, uint64_t seed,
                             std::vector<FamilyPoint> warm = {}) {
  auto policy = make_policy(name, space, {seed, std::move(warm)});
  EXPECT_TRUE(policy.ok()) << policy.status().to_string();
  return std::move(*policy);
}

// Runs `evaluations` and returns the keys in order of proposal.
template <class Space>
std::vector<std::string> run(Policy& policy, const Space& space, int evaluations, int batch,
                             Tree* kept = nullptr) {
  Tree own;
  Tree& tree = kept != nullptr ? *kept : own;
  std::vector<std::string> keys;
  while (tree.size() < evaluations) {
    const auto proposals = policy.propose(tree, batch);
    if (proposals.empty()) break;
    const int first = tree.size();
    for (const Proposal& p : proposals) {
      EXPECT_TRUE(space.valid(p.candidate)) << policy.name();
      EXPECT_LT(p.parent, tree.size());
      EXPECT_NE(tree.add({p.parent, p.second_parent, 0, p.made_by, p.candidate}), kNoNode)
          << policy.name() << " repeated " << point_key(p.candidate);
      keys.push_back(p.made_by + " " + point_key(p.candidate));
    }
    for (int id = first; id < tree.size(); ++id) {
      const double t = space.cost(tree.node(id).candidate);
      tree.set_outcome(id, t > 0 ? Outcome::kValid : Outcome::kFailed, t);
      policy.observed(tree, id);
    }
  }
  return keys;
}

class EveryPolicy : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Search, EveryPolicy, testing::ValuesIn(policy_names()),
                         [](const auto& info) { return info.param; });

TEST_P(EveryPolicy, ProposesOnlyNewValidCandidates) {
  const ModelSpace space(3);
  for (int batch : {1, 8, 16}) {
    auto policy = make(GetParam(), space, 11);
    EXPECT_GE(run(*policy, space, 200, batch).size(), 200u);
  }
}

TEST_P(EveryPolicy, IsAFunctionOfItsSeedAndWhatItSaw) {
  const ModelSpace space(4);
  auto a = make(GetParam(), space, 5), b = make(GetParam(), space, 5), c = make(GetParam(), space, 6);
  const auto keys = run(*a, space, 120, 8);
  EXPECT_EQ(keys, run(*b, space, 120, 8));
  EXPECT_NE(keys, run(*c, space, 120, 8));
}

// ModelSpace with a parameter that changes nothing: each kernel stands there as often as it has values. `small`: 1,584
// kernels alone, few enough to be listed.
class TwinSpace final : public SearchSpace {
 public:
  explicit TwinSpace(const ModelSpace& base, std::vector<int> idle = {16, 4, 64}, bool small = false)
      : base_(base), small_(small) {
    for (int f = 0; f < base.family_count(); ++f) {
      params_.push_back(base.params(f));
      params_.back().push_back({"idle", idle});
    }
  }
  int family_count() const override { return base_.family_count(); }
  const std::string& family_name(int f) const override { return base_.family_name(f); }
  const std::vector<Param>& params(int f) const override { return params_[static_cast<size_t>(f)]; }
  bool valid(const FamilyPoint& c) const override {
    return base_.valid(kernel(c)) && (!small_ || c.family == 2 || (c.family == 0 && c.point[2] == 0));
  }
  std::vector<Point> seeds(int f) const override {
    auto seeds = base_.seeds(f);
    for (Point& p : seeds) p.push_back(0);
    std::erase_if(seeds, [&](const Point& p) { return !valid({f, p}); });
    return seeds;
  }
  uint64_t kernel_number(const FamilyPoint& c) const override { return base_.kernel_number(kernel(c)); }
  double cost(const FamilyPoint& c) const { return base_.cost(kernel(c)); }
  FamilyPoint kernel(FamilyPoint c) const {
    c.point.pop_back();
    return c;
  }

 private:
  const ModelSpace& base_;
  bool small_;
  std::vector<std::vector<Param>> params_;
};

TEST_P(EveryPolicy, TriesOneOfThePointsThatAreOneKernel) {
  const ModelSpace model(3);
  const TwinSpace space(model);
  auto policy = make(GetParam(), space, 11);
  std::set<std::string> kernels;
  const auto keys = run(*policy, space, 300, 8);
  for (const std::string& key : keys)
    kernels.insert(key.substr(key.find(' '), key.rfind(',') - key.find(' ')));
  EXPECT_GE(keys.size(), 300U);
  EXPECT_EQ(kernels.size(), keys.size());
}

// A parameter that makes no difference is none to the model: it needs about as many evaluations as without it.
TEST(Portfolio, IsNotMisledByPointsThatAreOneKernel) {
  double with = 0, without = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const ModelSpace model(seed);
    const TwinSpace twins(model, {16, 4, 64}, true), plain(model, {16}, true);
    double best = std::numeric_limits<double>::infinity();
    model.for_each([&](FamilyPoint c) {
      const double cost = model.cost(c);
      c.point.push_back(0);
      if (cost > 0 && plain.valid(c)) best = std::min(best, cost);
    });
    const auto to_target = [&](const TwinSpace& space) {
      auto policy = make("default", space, seed);
      Tree tree;
      run(*policy, space, 100, 8, &tree);
      int id = 0;
      while (id < tree.size() &&
             (tree.node(id).outcome != Outcome::kValid || tree.node(id).cost > 1.02 * best))
        ++id;
      return std::log(1.0 + id);
    };
    with += to_target(twins) / 12, without += to_target(plain) / 12;
  }
  EXPECT_LT(std::exp(with - without), 1.5);
}

// A space that is small enough to be tried in full must be, and then the policy must say that nothing is
// left.
class TinySpace final : public SearchSpace {
 public:
  int family_count() const override { return 2; }
  const std::string& family_name(int f) const override { return f ? b_ : a_; }
  const std::vector<Param>& params(int f) const override { return f ? two_ : one_; }
  bool valid(const FamilyPoint& c) const override { return c.family == 1 || c.point[0] != 1; }
  std::vector<Point> seeds(int f) const override { return {Point(f ? 2 : 1, 0)}; }

 private:
  std::string a_ = "a", b_ = "b";
  std::vector<Param> one_{{"x", {1, 2, 3, 4}}}, two_{{"y", {1, 2, 3}}, {"z", {0, 1}}};
};

TEST_P(EveryPolicy, ExhaustsASmallSpaceAndThenProposesNothing) {
  const TinySpace space;
  auto policy = make(GetParam(), space, 1);
  Tree tree;
  for (int round = 0; round < 40; ++round) {
    for (const Proposal& p : policy->propose(tree, 4)) {
      const int id = tree.add({p.parent, p.second_parent, round, p.made_by, p.candidate});
      ASSERT_NE(id, kNoNode);
      tree.set_outcome(id, id % 3 ? Outcome::kValid : Outcome::kFailed, 1.0 + id);
      policy->observed(tree, id);
    }
  }
  EXPECT_EQ(tree.size(), 3 + 6);
  EXPECT_TRUE(policy->propose(tree, 4).empty());
}

TEST_P(EveryPolicy, SurvivesASpaceInWhichNothingPasses) {
  const ModelSpace space(9);
  auto policy = make(GetParam(), space, 2);
  Tree tree;
  for (int round = 0; round < 12; ++round)
    for (const Proposal& p : policy->propose(tree, 8)) {
      const int id = tree.add({p.parent, p.second_parent, round, p.made_by, p.candidate});
      tree.set_outcome(id, Outcome::kFailed);
      policy->observed(tree, id);
    }
  EXPECT_EQ(tree.best(), kNoNode);
  EXPECT_EQ(tree.size(), 96);
}

// Six landscapes, a seed each. The comparison is paired by landscape; the lower end of a
// one-sided 95 % interval on the mean log ratio must show the factor.
TEST(DefaultPolicy, NeedsAFifthOfRandomsEvaluations) {
  double sum = 0, squares = 0;
  int n = 0;
  for (uint64_t landscape = 100; landscape < 106; ++landscape) {
    const ModelSpace space(landscape);
    auto mine = make("default", space, landscape), random = make("random", space, landscape);
    const int a = evaluations_to_target(*mine, space, 1.02, 2000, 8);
    const int b = evaluations_to_target(*random, space, 1.02, 2000, 8);
    const double ratio = std::log(static_cast<double>(b) / a);
    RecordProperty("evaluations_" + std::to_string(landscape), a);
    sum += ratio;
    squares += ratio * ratio;
    ++n;
  }
  const double mean = sum / n, sd = std::sqrt((squares - n * mean * mean) / (n - 1));
  const double low = mean - 2.02 * sd / std::sqrt(n);
  EXPECT_GT(std::exp(low), 5.0) << "geometric mean factor " << std::exp(mean);
}

TEST(DefaultPolicy, TriesTheWarmStartFirst) {
  const ModelSpace space(7);
  FamilyPoint foreign = space.best();
  foreign.point.push_back(0);  // what another version wrote: not of this space
  auto policy = make("default", space, 3, {foreign, space.best()});
  const Tree tree;
  const auto first = policy->propose(tree, 4);
  ASSERT_FALSE(first.empty());
  EXPECT_EQ(first[0].candidate, space.best());
  EXPECT_EQ(first[0].made_by, "warm");
}

TEST(DefaultPolicy, WhatANearProblemTaughtSparesEvaluations) {
  int with = 0, without = 0;
  for (uint64_t landscape = 200; landscape < 204; ++landscape) {
    const ModelSpace space(landscape);
    // The near problem: three times as dear, and none of the points that are looked for was tried there.
    PolicyOptions options{landscape, {}};
    auto before = make("random", space, landscape + 7);
    Tree tree;
    while (tree.size() < 200)
      for (const Proposal& p : before->propose(tree, 8)) {
        const int id = tree.add({p.parent, p.second_parent, 0, p.made_by, p.candidate});
        const double t = space.cost(p.candidate);
        tree.set_outcome(id, t > 0 ? Outcome::kValid : Outcome::kFailed, t);
        if (t == 0 || t > 1.02 * space.optimum()) options.past.push_back({p.candidate, 3 * t});
      }
    auto mine = std::move(*make_policy("default", space, options)), fresh = make("default", space, landscape);
    with += evaluations_to_target(*mine, space, 1.02, 2000, 8);
    without += evaluations_to_target(*fresh, space, 1.02, 2000, 8);
  }
  EXPECT_LT(2 * with, without) << with << " with, " << without << " without";
}

TEST(DefaultPolicy, APastThatSaysNothingChangesNothing) {
  const ModelSpace space(7);
  PolicyOptions options{5, {}};
  for (int i = 0; i < 20; ++i) options.past.push_back({{0, {0}}, 1.0});                // not of this space
  for (int i = 0; i < 20; ++i) options.past.push_back({space.best(), 0});              // failed
  for (int i = 0; i < 7; ++i) options.past.push_back({{0, {0, 0, 0, 0, 0, 0}}, 1.0});  // too few
  auto mine = std::move(*make_policy("default", space, options)), fresh = make("default", space, 5);
  EXPECT_EQ(run(*mine, space, 80, 8), run(*fresh, space, 80, 8));
}

TEST(DefaultPolicy, ARestartDrawsTwoPointsThatKnowNothing) {
  const ModelSpace space(8);
  auto policy = make("default", space, 3);
  Tree tree;
  const auto step = [&](int count) {
    std::vector<std::string> made_by;
    for (const Proposal& p : policy->propose(tree, count)) {
      const int id = tree.add({p.parent, p.second_parent, 0, p.made_by, p.candidate});
      const double t = space.cost(p.candidate);
      tree.set_outcome(id, t > 0 ? Outcome::kValid : Outcome::kFailed, t);
      policy->observed(tree, id);
      made_by.push_back(p.made_by);
    }
    return made_by;
  };
  for (int i = 0; i < 5; ++i) step(8);
  policy->restart(tree);
  const int before = tree.size();
  const std::vector<std::string> made_by = step(8);
  ASSERT_EQ(made_by.size(), 8U);
  EXPECT_EQ(std::count(made_by.begin(), made_by.end(), "restart"), 2);
  for (int id = before; id < tree.size(); ++id)
    if (tree.node(id).made_by == "restart") {
      EXPECT_EQ(tree.node(id).parent, kNoNode);
    }
  for (const std::string& by : step(8)) EXPECT_NE(by, "restart");
}

TEST(MakePolicy, NamesWhatItKnows) {
  const TinySpace space;
  const auto policy = make_policy("annealing", space, {});
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.status().code(), dispatch::Code::kNotFound);
  EXPECT_NE(policy.status().message().find("evolutionary"), std::string::npos);
}

TEST(Forest, LearnsAStepAndIsUnsureWhereItSawNothing) {
  Rng rng(1);
  std::vector<float> rows;
  std::vector<double> targets;
  for (int i = 0; i < 200; ++i) {
    const auto x = static_cast<float>(rng.uniform()), noise = static_cast<float>(rng.uniform());
    if (x > 0.4F && x < 0.6F) continue;
    rows.insert(rows.end(), {x, noise});
    targets.push_back(x < 0.5F ? 1 : 3);
  }
  Forest forest;
  forest.fit(rows, 2, targets, rng);
  const std::vector<float> low{0.2F, 0.5F}, high{0.8F, 0.5F}, gap{0.5F, 0.5F};
  EXPECT_NEAR(forest.predict(low).mean, 1, 0.1);
  EXPECT_NEAR(forest.predict(high).mean, 3, 0.1);
  EXPECT_GT(forest.predict(gap).deviation, 5 * forest.predict(low).deviation);
}

TEST(Forest, WithoutSamplesPredictsZero) {
  Forest forest;
  const std::vector<float> row{1.0F};
  EXPECT_TRUE(forest.empty());
  EXPECT_EQ(forest.predict(row).mean, 0);
}

// Values 0, 1/8, ..., 1.
std::vector<float> ninths() {
  std::vector<float> v;
  for (int i = 0; i <= 8; ++i) v.push_back(static_cast<float>(i) / 8);
  return v;
}

TEST(GaussianProcess, FindsWhichFeatureMattersAndIsUnsureFarAway) {
  Rng rng(5);
  std::vector<uint8_t> rows;
  std::vector<double> targets;
  for (int i = 0; i < 40; ++i) {
    const auto x = static_cast<uint8_t>(rng.below(5)), idle = static_cast<uint8_t>(rng.below(9));
    rows.insert(rows.end(), {x, idle});
    targets.push_back(3.0 * x / 8);
  }
  GaussianProcess p({ninths(), ninths()});
  EXPECT_TRUE(p.empty());
  p.fit(rows, targets, 2);
  const uint8_t near[] = {2, 4}, moved[] = {2, 7}, far[] = {8, 4};
  const auto of_near = p.predict(near), of_moved = p.predict(moved), of_far = p.predict(far);
  EXPECT_NEAR(of_near.mean, 0.75, 0.1);
  EXPECT_NEAR(of_moved.mean, 0.75, 0.1);
  EXPECT_NEAR(p.mean(near), of_near.mean, 1e-12);
  EXPECT_GT(of_far.deviation, 2 * of_near.deviation);
  // To measure a neighbour of what is unknown tells of it; to measure what is known, little.
  const uint8_t beside[] = {7, 4};
  const auto of_beside = p.predict(beside);
  EXPECT_GT(p.likeness(far, of_far, beside, of_beside), p.likeness(far, of_far, near, of_near));
}

TEST(GaussianProcess, WhereFeaturesAddUpItKnowsWhatItNeverSawTogether) {
  // Each sample moves one feature of eight; the best point moves all of them.
  constexpr size_t kWidth = 8;
  std::vector<uint8_t> rows;
  std::vector<double> targets;
  for (size_t d = 0; d < kWidth; ++d)
    for (uint8_t v = 0; v <= 8; v += 2) {
      std::vector<uint8_t> row(kWidth, 0);
      row[d] = v;
      rows.insert(rows.end(), row.begin(), row.end());
      targets.push_back(1 - 0.1 * v / 8);
    }
  GaussianProcess p(std::vector<std::vector<float>>(kWidth, ninths()));
  p.fit(rows, targets, 2);
  const std::vector<uint8_t> all(kWidth, 8), none(kWidth, 0);
  // The truth is 0.8 lower. A product of kernels falls back to the mean far from all samples: 0.09 lower.
  EXPECT_LT(p.mean(all), p.mean(none) - 0.15);
}

TEST(GaussianProcess, EqualSamplesDoNotBreakIt) {
  const std::vector<uint8_t> rows{4, 4, 4, 4};
  const std::vector<double> targets{1, 1, 1, 1};
  GaussianProcess p({ninths()});
  p.fit(rows, targets, 2);
  const uint8_t at[] = {4};
  EXPECT_NEAR(p.predict(at).mean, 1, 1e-6);
  EXPECT_LE(p.likeness(at, p.predict(at), at, p.predict(at)), 1);
  p.fit({}, {}, 1);
  EXPECT_TRUE(p.empty());
  EXPECT_EQ(p.predict(at).mean, 0);
}

TEST(Tree, BestFollowsCorrections) {
  Tree tree;
  for (int i = 0; i < 3; ++i) tree.add({kNoNode, kNoNode, 0, "seed", {0, {i}}});
  EXPECT_EQ(tree.add({kNoNode, kNoNode, 0, "seed", {0, {1}}}), kNoNode);
  tree.set_outcome(0, Outcome::kValid, 0.9);
  tree.set_outcome(1, Outcome::kValid, 0.5);
  tree.set_outcome(2, Outcome::kValid, 0.7);
  EXPECT_EQ(tree.best(), 1);
  tree.set_outcome(1, Outcome::kValid, 0.8);  // the judge measured it slower than the screen did
  EXPECT_EQ(tree.best(), 2);
  tree.set_outcome(2, Outcome::kFailed);
  EXPECT_EQ(tree.best(), 1);
  EXPECT_EQ(tree.elites(5), (std::vector<int>{1, 0}));
  EXPECT_EQ(tree.in_flight(), 0);
}

TEST(OperatorBandit, PrefersWhatPaysAndSpreadsABatch) {
  OperatorBandit bandit(3);
  std::set<int> first{bandit.choose(), bandit.choose(), bandit.choose()};
  EXPECT_EQ(first.size(), 3u);
  for (int k = 0; k < 3; ++k) bandit.credit(k, k == 1);
  int chosen = 0;
  for (int i = 0; i < 60; ++i) {
    const int k = bandit.choose();
    bandit.credit(k, k == 1 && i % 2 == 0);
    chosen += k == 1;
  }
  EXPECT_GT(chosen, 45);
}

TEST(Stagnation, RestartsTwiceThenStops) {
  Stagnation s(0.01);
  EXPECT_EQ(s.observe(1.0), Stagnation::Advice::kGoOn);
  std::vector<int> restarts;
  int i = 1;
  for (;; ++i) {
    // Steps below the noise floor are no progress.
    const auto advice = s.observe(1.0 - 1e-5 * i);
    if (advice == Stagnation::Advice::kRestart) restarts.push_back(i);
    if (advice == Stagnation::Advice::kStop) break;
    ASSERT_LT(i, 1000);
  }
  EXPECT_EQ(restarts.size(), 2u);
  EXPECT_GE(restarts[0], 20);
}

TEST(Stagnation, ProgressForgivesEarlierRestarts) {
  Stagnation s(0.01);
  double best = 1.0;
  for (int round = 0; round < 10; ++round) {
    Stagnation::Advice advice = Stagnation::Advice::kGoOn;
    while (advice == Stagnation::Advice::kGoOn) advice = s.observe(best);
    EXPECT_EQ(advice, Stagnation::Advice::kRestart);
    best *= 0.9;
    EXPECT_EQ(s.observe(best), Stagnation::Advice::kGoOn);
  }
}

}  // namespace
}  // namespace niche::evolve::search
