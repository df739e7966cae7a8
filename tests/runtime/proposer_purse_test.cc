#include "runtime/proposer_purse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace niche {
namespace {

using testing::HasSubstr;

TEST(ProposerPurse, OneSessionHoldsWhatIsLeftAndGivesBackWhatItDidNotSpend) {
  ProposerPurse purse(2);
  ASSERT_EQ(purse.why_empty(), "");
  EXPECT_EQ(purse.take(1), 2);
  EXPECT_THAT(purse.why_empty(), HasSubstr("held by a session"));
  purse.cost(1, 0.5);
  purse.cost(1, 0);  // a worker that died tells nothing
  EXPECT_EQ(purse.spent(), 0.5) << "a session that runs has spent, too";
  EXPECT_THAT(purse.why_empty(), HasSubstr("held by a session"));
  purse.settle(1);
  EXPECT_EQ(purse.spent(), 0.5);
  ASSERT_EQ(purse.why_empty(), "");
  EXPECT_EQ(purse.take(2), 1.5);
}

TEST(ProposerPurse, NoSessionGetsMoreOnceAllIsSpent) {
  ProposerPurse purse(1);
  (void)purse.take(1);
  purse.cost(1, 1.25);  // the last call cost more than anybody thought
  purse.settle(1);
  EXPECT_THAT(purse.why_empty(), HasSubstr("spent ($1.2500 of $1.0000)"));
}

TEST(ProposerPurse, WhatCostsNothingIsForAllSessions) {
  ProposerPurse purse(0);
  EXPECT_EQ(purse.take(1), 0);
  ASSERT_EQ(purse.why_empty(), "");
  EXPECT_EQ(purse.take(2), 0);
  purse.cost(2, 0.1);  // a program that states a price of its own
  purse.settle(2);
  EXPECT_EQ(purse.why_empty(), "");
  EXPECT_EQ(purse.spent(), 0.1);
}

TEST(ProposerPurse, ASessionWithoutAModelChangesNothing) {
  ProposerPurse purse(1);
  purse.cost(7, 0.5);
  purse.settle(7);
  EXPECT_EQ(purse.spent(), 0);
  EXPECT_EQ(purse.take(1), 1);
}

}  // namespace
}  // namespace niche
