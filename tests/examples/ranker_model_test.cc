#include <ATen/ops/equal.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "examples/ranker/model.h"
#include "examples/ranker/tuning_cost.h"

namespace ranker {
namespace {

// The packed copy's layout does not depend on where it goes.
TEST(RankerFeatures, ArriveOnADeviceAsTheyWere) {
  for (const int64_t batch : {1, 3, 64}) {
    const Features made = Features::make(77, batch, 181), there = made.to(at::kCPU);
    EXPECT_TRUE(at::equal(made.ids, there.ids)) << batch;
    EXPECT_TRUE(at::equal(made.dense, there.dense)) << batch;
    EXPECT_TRUE(at::equal(made.item, there.item)) << batch;
    EXPECT_TRUE(at::equal(made.cluster, there.cluster)) << batch;
    for (const at::Tensor* t : {&there.ids, &there.dense}) {
      EXPECT_TRUE(t->is_contiguous());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(t->data_ptr()) % 64, 0U) << "as aligned as a tensor of its own";
    }
    EXPECT_EQ(there.length, 181);
    EXPECT_EQ(there.user, made.user);
  }
}

TEST(RankerModel, AnswersAlikeOnCopiesOfWeightsAndFeatures) {
  const c10::InferenceMode inference;
  const Weights weights = Weights::make(kWeightsSeed).to_double(), copy = weights.to(at::kCPU);
  const auto ops = make_reference_ops(weights), copy_ops = make_reference_ops(copy);
  for (const int64_t length : {2, 24, 512}) {
    const Features f = Features::make(5, 2, length);
    const Ranking a = rank(weights, *ops, f), b = rank(copy, *copy_ops, f.to(at::kCPU));
    EXPECT_EQ(a.logits.numel(), 2);
    EXPECT_TRUE(at::equal(a.logits, b.logits)) << length;
    EXPECT_TRUE(at::equal(a.features, b.features)) << length;
  }
}

// Latencies of 1 to 100 ms; with sessions those of the upper half take a tenth longer.
TEST(TuningCost, ComparesTheSameRequestsWithSessionsAndWithout) {
  TuningCostMeter meter;
  for (int quad = 0; quad < 8; ++quad) {
    for (int at = 0; at < TuningCostMeter::kWindows; ++at) {
      const bool on = TuningCostMeter::kOn[static_cast<size_t>(at)];
      meter.begin(quad, at);
      for (int i = 1; i <= 100; ++i) {
        const double drift = 1 + 0.5 * (quad * TuningCostMeter::kWindows);  // of the machine, alike in a quad
        meter.add(1, drift * (on && i > 50 ? 1.1 * i : i), on);
      }
      meter.add(TuningCostMeter::kSettleSeconds / 2, 1e6, on);  // before the session is known to have stopped
      meter.add(1, 1e6, !on);  // a session that should not have run, or did not
    }
  }
  const TuningCost c = meter.summary();
  EXPECT_EQ(c.quads, 8);
  EXPECT_EQ(c.requests_on, 1600);
  EXPECT_EQ(c.requests_off, 1600);
  EXPECT_NEAR(c.p99_ratio, 1.1, 0.02);
  EXPECT_GT(c.p99_ratio_low, 1.0);
  EXPECT_LT(c.p99_ratio_high, 1.2);
}

TEST(TuningCost, AQuadWithoutSessionsSaysNothing) {
  TuningCostMeter meter;
  EXPECT_EQ(meter.summary().quads, 0);
  for (int at = 0; at < TuningCostMeter::kWindows; ++at) {
    meter.begin(0, at);
    for (int i = 1; i <= 100; ++i) meter.add(1, i, false);  // paused all the time, whatever was asked for
  }
  EXPECT_EQ(meter.summary().quads, 0);
}

}  // namespace
}  // namespace ranker
