#include "evolve/judge_device/case_lanes.h"

#include <gtest/gtest.h>

#include <cstring>

#include "evolve/judge/host_args.h"
#include "test_ops.h"

namespace niche::evolve::judge {
namespace {

using dispatch::Problem;

struct Lanes {
  explicit Lanes(int count) {
    LaneOptions o;
    o.lanes = count;
    o.memory_bytes = int64_t{64} << 20;
    o.cache_bytes = int64_t{64} << 20;
    auto made = CaseLanes::make(op, definition, o);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    lanes = std::move(*made);
  }
  CaseId id(int64_t m, uint64_t seed) const {
    CaseId c;
    c.axes[0] = m;
    c.axes[1] = 64;
    c.seed = seed;
    return c;
  }
  // What the operator's second form leaves, as a probe hands it over.
  std::vector<std::vector<uint8_t>> answer(const CaseId& c, const CaseLanes::Made& made) const {
    std::vector<std::vector<uint8_t>> out(3);
    out[2].resize(static_cast<size_t>(made.args[2].bytes));
    void* p[] = {const_cast<uint8_t*>(made.args[0].data.data()),
                 const_cast<uint8_t*>(made.args[1].data.data()), out[2].data()};
    long n[] = {static_cast<long>(c.axes[0]), 64};
    NicheKernelArgs args{p, n, definition->attrs().data(), nullptr, nullptr};
    op->run_fallback(1, {definition.get(), &args, nullptr});
    return out;
  }
  std::shared_ptr<test_ops::NormOp> op = std::make_shared<test_ops::NormOp>();
  std::shared_ptr<const dispatch::Definition> definition =
      *dispatch::Definition::make(op->schema(), dispatch::kF32, {{"N", 64}});
  std::unique_ptr<CaseLanes> lanes;
};

TEST(CaseLanes, ManyCasesUnderWayAreMadeAndCheckedEachByItsOwnReference) {
  Lanes f(3);
  std::vector<CaseId> ids;
  std::vector<std::future<CaseLanes::Made>> making;
  for (int i = 0; i < 24; ++i) {
    ids.push_back(f.id(1 + i % 7, static_cast<uint64_t>(100 + i)));
    making.push_back(f.lanes->begin(ids.back(), 0));
  }
  std::vector<std::future<dispatch::Result<Finding>>> checks;
  std::vector<std::vector<uint8_t>> inputs;
  for (size_t i = 0; i < ids.size(); ++i) {
    const CaseLanes::Made made = making[i].get();
    ASSERT_TRUE(made.status.ok()) << made.status.to_string();
    inputs.push_back(made.args[0].data);
    auto out = f.answer(ids[i], made);
    if (i == 5 || i == 17) {  // one value of one case
      float wrong = 1e6F;
      std::memcpy(out[2].data() + 4 * i, &wrong, 4);
    }
    checks.push_back(f.lanes->check(ids[i], 0, std::move(out)));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto found = checks[i].get();
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    EXPECT_EQ(found->ok, i != 5 && i != 17) << i << ": " << found->reason;
  }
  EXPECT_NE(inputs[0], inputs[7]) << "the same extents, another seed";
  EXPECT_EQ(f.lanes->begin(ids[9], -1).get().args[0].data, inputs[9])
      << "a case is the same when it comes again";
}

TEST(CaseLanes, AnUntouchedOutputIsFound) {
  Lanes f(2);
  const CaseId id = f.id(4, 1);
  const CaseLanes::Made made = f.lanes->begin(id, 0).get();
  auto out = f.answer(id, made);
  out[2].clear();  // nothing came back: the lane's poison stays
  const auto found = f.lanes->check(id, 0, std::move(out)).get();
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->ok);
}

TEST(CaseLanes, EndWithCasesStillUnderWay) {
  Lanes f(2);
  for (int i = 0; i < 50; ++i) (void)f.lanes->begin(f.id(500, static_cast<uint64_t>(i)), 0);
  f.lanes.reset();
}

TEST(CaseLanes, WhatDoesNotFitIsTheCasesFailure) {
  Lanes f(1);
  const CaseLanes::Made made = f.lanes->begin(f.id(1 << 23, 1), 0).get();
  EXPECT_EQ(made.status.code(), dispatch::Code::kBusy) << made.status.to_string();
  EXPECT_TRUE(f.lanes->begin(f.id(3, 1), 0).get().status.ok()) << "the lane goes on";
}

}  // namespace
}  // namespace niche::evolve::judge
