#include "dispatch/problem_key.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace niche::dispatch {
namespace {

WideProblem random_problem(std::mt19937_64& rng) {
  WideProblem p;
  p.prefix = {static_cast<uint32_t>(rng() % ProblemKey::kDefinitionMax) + 1,
              static_cast<uint32_t>(rng() & 0xff), static_cast<uint32_t>(rng() & 0xff),
              static_cast<uint32_t>(rng() & 0xff), ConstraintSet::from_bits(static_cast<uint8_t>(rng()))};
  p.layout = LayoutClass::from_bits(rng());
  for (int64_t& a : p.axes) a = static_cast<int64_t>(rng() & 0xffffffff);
  return p;
}

TEST(ProblemKey, DecodesToWhatWasPacked) {
  std::mt19937_64 rng(7);
  for (int i = 0; i < 10000; ++i) {
    const WideProblem p = random_problem(rng);
    const ProblemKey k = pack_key(p);
    ASSERT_FALSE(k.wide());
    ASSERT_EQ(k.decode(), p);
    ASSERT_NE(k.w0, 0u) << "0 marks an empty slot";
  }
}

// Injective: flipping any one bit of any part gives another key.
TEST(ProblemKey, EveryBitCounts) {
  std::mt19937_64 rng(8);
  const WideProblem p = random_problem(rng);
  const ProblemKey k = pack_key(p);
  int flips = 0;
  const auto differs = [&](const WideProblem& q) {
    ++flips;
    EXPECT_FALSE(pack_key(q) == k) << flips;
  };
  for (int b = 0; b < 24; ++b) {
    WideProblem q = p;
    q.prefix.definition ^= 1u << b;
    differs(q);
  }
  for (uint32_t KeyPrefix::*field : {&KeyPrefix::tenant, &KeyPrefix::device, &KeyPrefix::threads}) {
    for (int b = 0; b < 32; ++b) {
      WideProblem q = p;
      q.prefix.*field ^= 1u << b;  // past bit 7: a wide key
      differs(q);
    }
  }
  for (int b = 0; b < 7; ++b) {
    WideProblem q = p;
    q.prefix.constraints =
        ConstraintSet::from_bits(p.prefix.constraints.bits() ^ static_cast<uint8_t>(1 << b));
    differs(q);
  }
  for (int b = 0; b < 40; ++b) {
    WideProblem q = p;
    q.layout = LayoutClass::from_bits(p.layout.bits() ^ uint64_t{1} << b);
    differs(q);
  }
  for (int a = 0; a < kMaxVarAxes; ++a) {
    for (int b = 0; b < 64; ++b) {
      WideProblem q = p;
      q.axes[a] = static_cast<int64_t>(static_cast<uint64_t>(q.axes[a]) ^ uint64_t{1} << b);
      differs(q);
    }
  }
  EXPECT_EQ(flips, 24 + 96 + 7 + 40 + 320);
}

TEST(ProblemKey, WhatDoesNotFitIsWide) {
  WideProblem p;
  p.prefix.definition = 3;
  p.axes[4] = int64_t{1} << 32;
  EXPECT_TRUE(pack_key(p).wide());
  p.axes[4] = -1;
  EXPECT_TRUE(pack_key(p).wide());
  p.axes[4] = 0xffffffff;
  EXPECT_FALSE(pack_key(p).wide());
  p.prefix.threads = 256;
  const ProblemKey k = pack_key(p);
  EXPECT_TRUE(k.wide());
  EXPECT_EQ(k.definition(), 3u);
  EXPECT_EQ(k.layout(), p.layout);
}

TEST(ProblemKey, FurtherDemandsOfAScopeAreAdded) {
  WideProblem p;
  p.prefix.definition = 9;
  p.prefix.constraints = ConstraintSet().deterministic();
  const ProblemKey k =
      pack_key(PackedPrefix(p.prefix).with(PackedPrefix::bits_of(ConstraintSet().capturable())), p.prefix,
               p.layout, p.axes);
  EXPECT_EQ(k.constraints(), ConstraintSet().deterministic().capturable());
}

// Shapes as they come (small, close, powers of two) fill buckets of high bits and of low bits like random
// ones: the load of the fullest of 1,024 buckets for 65,536 keys is about 64 + 4 * 8 in both.
TEST(ProblemKey, HashSpreadsRealShapesInHighAndLowBits) {
  for (int kind = 0; kind < 3; ++kind) {
    std::vector<int> high(1024), low(1024);
    for (int64_t b = 0; b < 256; ++b) {
      for (int64_t l = 0; l < 256; ++l) {
        WideProblem p;
        p.prefix.definition = 1;
        p.layout = LayoutClass::plain(6);
        p.axes[0] = kind == 1 ? b * 64 : b;
        p.axes[kind == 2 ? 4 : 1] = kind == 1 ? l * 128 : l;
        const uint64_t h = pack_key(p).hash();
        ++high[h >> 54];
        ++low[h & 1023];
      }
    }
    EXPECT_LT(*std::max_element(high.begin(), high.end()), 110) << kind;
    EXPECT_LT(*std::max_element(low.begin(), low.end()), 110) << kind;
  }
}

TEST(LayoutClass, PlainIsContiguousWithoutOverlap) {
  EXPECT_TRUE(LayoutClass::plain(4).plain());
  EXPECT_FALSE(LayoutClass::plain(4).strided(2, LayoutClass::kRowStrided).plain());
  EXPECT_FALSE(LayoutClass::plain(4).aliases_output(0).plain());
  EXPECT_EQ(LayoutClass::plain_at(0x1000).alignment_bytes(), 64);
  EXPECT_EQ(LayoutClass::plain_at(0x1000 | 0x2010).alignment_bytes(), 16);
  EXPECT_EQ(LayoutClass::plain_at(0).alignment_bytes(), 64) << "no pointer at all";
  Guard g;
  g.alignment_bytes = 32;
  EXPECT_FALSE(LayoutClass::plain(4).fits(g));
  EXPECT_TRUE(LayoutClass::plain(5).fits(g));
}

TEST(ConstraintSet, TheStricterOfTwoWins) {
  const auto a = ConstraintSet().workspace(WorkspaceLimit::kAtMost1MiB);
  const auto b = ConstraintSet().workspace(WorkspaceLimit::kAtMost64MiB).deterministic();
  EXPECT_EQ((a | b).workspace_bytes_max(), int64_t{1} << 20);
  KernelProperties p;
  EXPECT_TRUE((a | b).met_by(p, 1 << 20));
  EXPECT_FALSE((a | b).met_by(p, (1 << 20) + 1));
  p.deterministic = false;
  EXPECT_FALSE((a | b).met_by(p, 0));
  EXPECT_TRUE(a.met_by(p, 0));
}

}  // namespace
}  // namespace niche::dispatch
