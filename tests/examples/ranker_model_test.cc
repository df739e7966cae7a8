#include <ATen/ops/equal.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "examples/ranker/model.h"

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

}  // namespace
}  // namespace ranker
