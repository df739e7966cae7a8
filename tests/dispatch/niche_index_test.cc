#include "dispatch/niche_index.h"

#include <gtest/gtest.h>

#include "tests/dispatch/data_plane_fixture.h"

namespace niche::dispatch {
namespace {

using testing::box;
using testing::toy_kernel;

class NicheIndexTest : public testing::DataPlane {
 protected:
  RegionSpec region(Guard where, std::shared_ptr<Route> r, int priority = 0) {
    return {site.prefix(), where, std::move(r), priority};
  }
};

TEST_F(NicheIndexTest, ARegionNeverReachesBeyondWhatAKernelWasVerifiedOn) {
  const auto r = route(toy_kernel(definition, 1, box(1, 64, 1, 512, 8)));
  const auto put = [&](Guard g) { return d->publisher().put_region(region(g, r)).status().code(); };
  EXPECT_EQ(put(box(1, 65, 1, 512, 8)), Code::kInvalid);
  EXPECT_EQ(put(box(0, 64, 1, 512, 8)), Code::kInvalid);
  EXPECT_EQ(put(box(1, 64, 1, 512, 4)), Code::kInvalid) << "finer steps than verified";
  EXPECT_EQ(put(box(1, 64, 1, 512, 16)), Code::kOk);
  EXPECT_EQ(put(box(1, 64, 24, 24, 1)), Code::kOk) << "one verified point";
  EXPECT_EQ(put(box(1, 64, 25, 25, 1)), Code::kInvalid);
  EXPECT_EQ(put(box(5, 4, 1, 512, 8)), Code::kInvalid) << "an empty box";
}

TEST_F(NicheIndexTest, ServesUnseenShapesInsideTheBoxAlone) {
  ASSERT_TRUE(d->publisher().put_region(region(box(2, 8, 16, 128), route(toy_kernel(definition)))).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(decide(2, 16).rung, Rung::kRegion);
  EXPECT_EQ(decide(8, 128).rung, Rung::kRegion);
  for (const auto& [b, l] : {std::pair{1, 16}, {9, 16}, {2, 15}, {8, 129}}) {
    const Decision out = decide(b, l);
    EXPECT_EQ(out.rung, Rung::kFallback);
    EXPECT_EQ(out.reason, FallbackReason::kMiss);
  }
}

TEST_F(NicheIndexTest, EveryRealShapeIsCheckedAgainstTheGuard) {
  // The box is coarse in L; the region inside takes multiples of 8 alone.
  ASSERT_TRUE(
      d->publisher()
          .put_region(region(box(1, 8, 8, 128, 8), route(toy_kernel(definition, 1, box(1, 8, 8, 128, 8)))))
          .ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(decide(4, 64).rung, Rung::kRegion);
  EXPECT_EQ(decide(4, 65).reason, FallbackReason::kGuard);
  EXPECT_EQ(decide_at(site, 4, 64, LayoutClass::plain(2)).reason, FallbackReason::kLayout);
  EXPECT_EQ(decide_at(site, 4, 64, LayoutClass::plain(6).strided(0, LayoutClass::kRowStrided)).reason,
            FallbackReason::kLayout);
}

TEST_F(NicheIndexTest, OtherTenantsDevicesAndThreadCountsHaveTheirOwn) {
  ASSERT_TRUE(d->publisher().put_region(region(box(1, 8, 1, 128), route(toy_kernel(definition)))).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(decide_at(d->call_site(number, {.tenant = 1}), 4, 64).reason, FallbackReason::kMiss);
  EXPECT_EQ(decide_at(d->call_site(number, {.device = 1}), 4, 64).reason, FallbackReason::kMiss);
  EXPECT_EQ(decide_at(d->call_site(number, {.threads = 2}), 4, 64).reason, FallbackReason::kMiss);
  EXPECT_EQ(decide_at(d->call_site(number, {}), 4, 64).rung, Rung::kRegion);
}

TEST_F(NicheIndexTest, PriorityThenAgeDecidesOverlaps) {
  const auto first = route(toy_kernel(definition, 1)), second = route(toy_kernel(definition, 2)),
             third = route(toy_kernel(definition, 3));
  ASSERT_TRUE(d->publisher().put_region(region(box(1, 8, 1, 8), first)).ok());
  ASSERT_TRUE(d->publisher().put_region(region(box(1, 8, 1, 8), second)).ok());
  const auto id = d->publisher().put_region(region(box(1, 4, 1, 8), third, 1));
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(decide(2, 2).route, third.get());
  EXPECT_EQ(decide(6, 2).route, first.get());
  ASSERT_TRUE(d->publisher().erase_region(*id).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  EXPECT_EQ(decide(2, 2).route, first.get());
  EXPECT_EQ(d->publisher().erase_region(*id).code(), Code::kNotFound);
}

TEST_F(NicheIndexTest, ARefusedRegionLeavesTheCallToTheNext) {
  auto sloppy = toy_kernel(definition, 1);
  sloppy->properties.deterministic = false;
  const auto fast = route(sloppy), exact = route(toy_kernel(definition, 2));
  ASSERT_TRUE(d->publisher().put_region(region(box(1, 8, 1, 8), fast)).ok());
  ASSERT_TRUE(d->publisher().put_region(region(box(1, 4, 1, 8), exact)).ok());
  ASSERT_TRUE(d->publisher().commit().ok());
  const CallSite strict = d->call_site(number, {.constraints = ConstraintSet().deterministic()});
  EXPECT_EQ(decide_at(site, 2, 2).route, fast.get());
  EXPECT_EQ(decide_at(strict, 2, 2).route, exact.get());
  EXPECT_EQ(decide_at(strict, 6, 2).reason, FallbackReason::kConstraint);
}

TEST_F(NicheIndexTest, RegionsOfADefinitionAreBounded) {
  for (int i = 0; i < NicheIndex::kRegionsMax; ++i)
    ASSERT_TRUE(
        d->publisher().put_region(region(box(i + 1, i + 1, 1, 8), route(toy_kernel(definition)))).ok());
  EXPECT_EQ(d->publisher().put_region(region(box(1, 1, 1, 8), route(toy_kernel(definition)))).status().code(),
            Code::kBusy);
}

}  // namespace
}  // namespace niche::dispatch
