#include "dispatch/group_table.h"

#include <random>

#include "tests/dispatch/data_plane_fixture.h"

namespace niche::dispatch {
namespace {

using testing::box;
using testing::toy_kernel;

class GroupTableTest : public testing::DataPlane {
 protected:
  void SetUp() override {
    DataPlane::SetUp();
    table = make_table();
  }
  std::unique_ptr<GroupTable> make_table() {
    return std::make_unique<GroupTable>(d, [this](const GroupChange& c) { return resolve(c); });
  }
  Result<Publisher::Placement> resolve(const GroupChange& c) {
    WideProblem p{site.prefix(), c.layout, {}};
    std::copy(c.axes.begin(), c.axes.end(), p.axes);
    if (c.kernel == "unknown") return not_found("kernel 'unknown'");
    if (c.kernel.empty())
      return Publisher::Placement{p, *d->make_route({definition, d->fallback(number, 0), nullptr, nullptr,
                                                     RolloutState::kFallbackOnly, 0, ""})};
    const int tag = std::stoi(c.kernel);
    return Publisher::Placement{p, route(toy_kernel(definition, tag, box(1, 64, 1, 64)))};
  }
  GroupChange change(int64_t b, const std::string& kernel) const {
    GroupChange c;
    c.definition = definition->name();
    c.layout = LayoutClass::plain(6);
    c.axes = {b, 8};
    c.kernel = kernel;
    return c;
  }
  Status serve(uint64_t version, const Result<std::vector<uint8_t>>& payload) {
    if (!payload) return payload.status();
    NICHE_RETURN_IF_ERROR(table->prepare(version, *payload));
    return table->take(version);
  }
  int tag(int64_t b) {
    const Decision dec = decide(b, 8);
    return dec.kernel->is_fallback() ? 0 : dec.kernel->phase_count;
  }
  std::unique_ptr<GroupTable> table;
};

TEST_F(GroupTableTest, AVersionServesOnceTakenAndARollbackUndoesIt) {
  const auto first = table->proposal(std::vector{change(1, "5"), change(2, "5")});
  ASSERT_TRUE(table->prepare(1, *first).ok());
  EXPECT_EQ(tag(1), 0) << "prepared is not taken";
  EXPECT_TRUE(table->take(1).ok());
  EXPECT_EQ(tag(1), 5);
  ASSERT_TRUE(serve(2, table->proposal(std::vector{change(2, "6"), change(3, "7")})).ok());
  EXPECT_EQ(tag(1), 5);
  EXPECT_EQ(tag(2), 6);
  EXPECT_EQ(tag(3), 7);
  ASSERT_TRUE(serve(3, table->rollback()).ok());
  EXPECT_EQ(tag(1), 5);
  EXPECT_EQ(tag(2), 5);
  EXPECT_EQ(tag(3), 0) << "the library, as before";
  EXPECT_EQ(table->rollback().status().code(), Code::kNotFound) << "a rollback is not undone by another";
}

TEST_F(GroupTableTest, ANewRankGetsTheWholeTableFromTheLastProposal) {
  ASSERT_TRUE(serve(1, table->proposal(std::vector{change(1, "5"), change(2, "5")})).ok());
  const auto second = table->proposal(std::vector{change(2, "6")});
  start({});
  table = make_table();
  ASSERT_TRUE(serve(2, second).ok());
  EXPECT_EQ(tag(1), 5);
  EXPECT_EQ(tag(2), 6);
}

// What it has not seen itself came with the version that serves.
TEST_F(GroupTableTest, ARankThatJoinedUndoesTheLastVersionAndNothingElse) {
  ASSERT_TRUE(serve(1, table->proposal(std::vector{change(1, "5"), change(2, "5")})).ok());
  const auto second = table->proposal(std::vector{change(2, "6"), change(3, "7")});
  ASSERT_TRUE(serve(2, second).ok());
  const auto of_an_old_rank = table->rollback();
  start({});
  table = make_table();
  ASSERT_TRUE(serve(2, second).ok());
  const auto undo = table->rollback();
  ASSERT_TRUE(undo.ok());
  EXPECT_EQ(*undo, *of_an_old_rank) << "whichever rank proposes it";
  ASSERT_TRUE(serve(3, undo).ok());
  EXPECT_EQ(tag(1), 5) << "not of the version that was undone";
  EXPECT_EQ(tag(2), 5);
  EXPECT_EQ(tag(3), 0);
  EXPECT_EQ(table->rollback().status().code(), Code::kNotFound);
}

TEST_F(GroupTableTest, AFullTableOfTheLongestNamesIsAProposal) {
  std::vector<GroupChange> all;
  for (size_t i = 0; i < GroupTable::kProblemsMax; ++i) {
    GroupChange c = change(static_cast<int64_t>(i) + 1, std::string(GroupTable::kNameBytesMax, 'k'));
    c.definition = std::string(GroupTable::kNameBytesMax, 'd');
    all.push_back(c);
  }
  GroupProposal p{1, false, all, all};
  EXPECT_EQ(GroupTable::encode(p).size(),
            GroupTable::kHeaderBytes + GroupTable::kProblemsMax * GroupTable::kProblemBytesMax);
  const auto payload = table->proposal(all);
  ASSERT_TRUE(payload.ok()) << payload.status().to_string();
  EXPECT_LE(payload->size(), RankGroup::kProposalBytesMax);
  EXPECT_EQ(GroupTable::decode(*payload)->table, all);
}

TEST_F(GroupTableTest, AProposalMadeFromAnOlderVersionIsRefused) {
  ASSERT_TRUE(serve(1, table->proposal(std::vector{change(1, "5")})).ok());
  const auto stale = table->proposal(std::vector{change(1, "9")});
  ASSERT_TRUE(serve(2, table->proposal(std::vector{change(2, "6")})).ok());
  const Status s = serve(3, stale);
  EXPECT_EQ(s.code(), Code::kInvalid);
  EXPECT_NE(s.message().find("made from version 1"), std::string::npos) << s.message();
  EXPECT_EQ(tag(1), 5);
}

TEST_F(GroupTableTest, WhatThisRankCannotServeIsRefusedBeforeAnythingServes) {
  EXPECT_EQ(serve(1, table->proposal(std::vector{change(1, "5"), change(2, "unknown")})).code(),
            Code::kNotFound);
  EXPECT_EQ(serve(2, table->proposal(std::vector{change(1, "5"), change(65, "5")})).code(), Code::kInvalid)
      << "outside the kernel's guard";
  EXPECT_EQ(tag(1), 0);
  EXPECT_EQ(table->proposal(std::vector<GroupChange>{}).status().code(), Code::kInvalid);
  EXPECT_EQ(table->proposal(std::vector{change(1, "5"), change(1, "6")}).status().code(), Code::kInvalid);
  EXPECT_EQ(table->proposal(std::vector{change(1, std::string(256, 'x'))}).status().code(), Code::kInvalid);
  std::vector<GroupChange> many;
  for (int i = 0; i < 513; ++i) many.push_back(change(i, "5"));
  EXPECT_EQ(table->proposal(many).status().code(), Code::kBusy);
  EXPECT_EQ(table->rollback().status().code(), Code::kNotFound);
  const auto dropped = table->proposal(std::vector{change(1, "5")});
  ASSERT_TRUE(table->prepare(3, *dropped).ok());
  table->drop(3);
  const Status never = table->take(3);
  EXPECT_EQ(never.code(), Code::kNotFound) << "dropped is never taken";
  EXPECT_NE(never.message().find("version 3"), std::string::npos) << never.message();
  EXPECT_EQ(tag(1), 0);
}

// While a reader stalls past the bound, a version is not prepared; one that was prepared before is taken at
// once.
TEST_F(GroupTableTest, AStalledReaderKeepsAVersionFromBeingPreparedNotFromBeingTaken) {
  start({.publisher = {.retired_tables_max = 2}});
  table = make_table();
  publish(40, 8, route(toy_kernel(definition, 1)));
  ASSERT_TRUE(table->prepare(1, *table->proposal(std::vector{change(1, "5")})).ok());
  {
    Dispatcher::Call stalled(*d);
    for (int i = 41; i < 44; ++i) {
      ASSERT_TRUE(d->publisher().put(problem(i, 8), route(toy_kernel(definition, 1))).ok());
      (void)d->publisher().commit();
    }
    EXPECT_TRUE(table->take(1).ok());
    EXPECT_EQ(table->prepare(2, *table->proposal(std::vector{change(1, "6")})).code(), Code::kBusy);
  }
  EXPECT_EQ(tag(1), 5);
  EXPECT_EQ(tag(43), 1) << "what waited came along";
  EXPECT_TRUE(serve(2, table->proposal(std::vector{change(1, "6")})).ok());
}

TEST_F(GroupTableTest, PayloadsSurviveAndBrokenOnesAreNamed) {
  GroupProposal p{7, true, {change(1, "5"), change(2, "")}, {change(2, "8")}};
  p.table[0].constraints = ConstraintSet().deterministic();
  p.table[0].axes[4] = -1;
  const auto bytes = GroupTable::encode(p);
  const auto back = GroupTable::decode(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, p);
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_EQ(GroupTable::decode(std::span(bytes.data(), n)).status().code(), Code::kCorrupt) << n;
  auto longer = bytes;
  longer.push_back(0);
  EXPECT_EQ(GroupTable::decode(longer).status().code(), Code::kCorrupt);
  std::mt19937_64 rng(2);
  for (int i = 0; i < 20000; ++i) {
    auto broken = bytes;
    for (uint64_t n = 1 + rng() % 4; n > 0; --n) broken[rng() % broken.size()] = static_cast<uint8_t>(rng());
    broken.resize(rng() % (broken.size() + 1));
    (void)GroupTable::decode(broken);  // whatever it says: no read past the end (AddressSanitizer)
  }
}

}  // namespace
}  // namespace niche::dispatch
