#include "evolve/digest.h"

#include <gtest/gtest.h>

#include "evolve/verdict.h"

namespace niche::evolve {
namespace {

// A row norm at 76 % of DRAM: nothing wrong with it but that memory is what it waits for.
Digest memory_bound() {
  Digest d;
  d.var_axes = {4096};
  d.kernel_us = 17.97;
  d.dram = 0.76, d.l2 = 0.3, d.fma = 0.01;
  d.flops_per_byte = 1, d.ridge = 218, d.roof = 0.76;
  d.symbol = "run";
  d.registers = 40, d.threads = 256, d.shared_bytes = 64;
  d.blocks = 4096, d.blocks_per_sm = 6, d.occupancy = 0.75, d.limiter = "registers", d.waves = 5.17;
  d.multiprocessors = 132;
  return d;
}

std::string bottleneck(const Digest& d) { return diagnose(d).bottleneck; }

TEST(Diagnosis, IsOneThingWithItsNumbers) {
  const Diagnosis d = diagnose(memory_bound());
  EXPECT_EQ(d.bottleneck, "memory");
  EXPECT_EQ(d.topic, "memory");
  EXPECT_EQ(d.because, "1 flops a byte, left of the ridge at 218: DRAM at 76 %");
  EXPECT_EQ(diagnosis_text(d), "memory: " + d.because);
}

TEST(Diagnosis, SpillsComeBeforeAllElse) {
  Digest d = memory_bound();
  d.roof = 0.95;
  d.spill_bytes = 96;
  EXPECT_EQ(bottleneck(d), "spills");
  EXPECT_EQ(diagnose(d).topic, "spills");
  EXPECT_NE(diagnose(d).because.find("96 bytes"), std::string::npos);
}

TEST(Diagnosis, AtTheRoofThereIsLittleLeft) {
  Digest d = memory_bound();
  d.roof = 0.86;
  EXPECT_EQ(bottleneck(d), "roof");
  EXPECT_EQ(diagnose(d).because, "at 86 % of the memory roof: little is left to gain");
}

TEST(Diagnosis, AShortKernelIsItsLaunchAndASmallGridIdles) {
  Digest d = memory_bound();
  d.kernel_us = 1.6, d.roof = 0.3;
  EXPECT_EQ(bottleneck(d), "launch");
  d.kernel_us = 12, d.blocks = 64, d.waves = 0.08;
  EXPECT_EQ(bottleneck(d), "grid");
  EXPECT_EQ(diagnose(d).because, "64 blocks on 132 multiprocessors: the others idle");
  d.blocks = 900, d.waves = 900.0 / 792;  // 1.14: the second wave holds 108 blocks of 792
  EXPECT_EQ(bottleneck(d), "grid");
  d.blocks = 7128, d.waves = 9;
  EXPECT_EQ(bottleneck(d), "memory");
}

TEST(Diagnosis, FewWarpsMatterWhereNothingElseIsNearItsPeak) {
  Digest d = memory_bound();
  d.roof = d.dram = 0.4, d.occupancy = 0.25, d.limiter = "shared memory", d.shared_bytes = 102400;
  EXPECT_EQ(bottleneck(d), "occupancy");
  EXPECT_NE(diagnose(d).because.find("25 % of the warps fit, limited by shared memory"), std::string::npos)
      << diagnose(d).because;
  d.fma = -1, d.tensor = 0.4;  // kernels of matrix instructions are made of few warps
  EXPECT_EQ(bottleneck(d), "memory");
}

TEST(Diagnosis, FarBelowTheRoofItIsLatencyUnlessAUnitWasCountedNearItsPeak) {
  Digest d = memory_bound();
  d.roof = d.dram = 0.11;
  EXPECT_EQ(bottleneck(d), "latency");
  EXPECT_EQ(diagnose(d).because, "at 11 % of the memory roof: no unit is near its peak, so warps wait");
  d.counters = ProfilerCounters();
  d.counters->dram = 0.7;  // it moves six times what the operator needs
  EXPECT_EQ(bottleneck(d), "memory");
}

TEST(Diagnosis, RightOfTheRidgeItIsArithmetic) {
  Digest d = memory_bound();
  d.flops_per_byte = 400, d.roof = 0.5, d.tensor = 0.5, d.fma = -1;
  EXPECT_EQ(bottleneck(d), "compute");
  EXPECT_NE(diagnose(d).because.find("the tensor pipe at 50 %"), std::string::npos);
  d.tensor = -1, d.fma = 0.2;
  EXPECT_NE(diagnose(d).because.find("no matrix instructions, FMA at 20 %"), std::string::npos);
}

TEST(Diagnosis, WhatWasCountedStandsForWhatWasComputed) {
  Digest d = memory_bound();
  d.roof = d.dram = 0.4;
  d.counters = ProfilerCounters();
  d.counters->dram = 0.45, d.counters->l2 = 0.3, d.counters->issue = 0.2;
  d.counters->stalls = {{"long_scoreboard", 0.7}, {"barrier", 0.3}};
  EXPECT_EQ(bottleneck(d), "latency");
  EXPECT_EQ(diagnose(d).because,
            "no unit is above 60 %; warps wait most for long_scoreboard (70 % of all waits)");
  d.counters->dram = 0.8;  // it moves twice what the operator needs
  EXPECT_EQ(bottleneck(d), "memory");
  EXPECT_NE(diagnose(d).because.find("DRAM at 80 %"), std::string::npos);
}

TEST(Digest, TextHasEveryFigure) {
  Digest d = memory_bound();
  EXPECT_EQ(
      digest_text(d),
      "17.97 us: DRAM 76 %, L2 30 %, FMA 1 %; 76 % of the memory roof (1 flops a byte, ridge 218); occupancy "
      "75 % "
      "by registers (40 registers, 256 threads, 64 B shared, 6 a multiprocessor, 5.17 waves); no spills");
  d.spill_bytes = 8;
  d.counters = ProfilerCounters();
  d.counters->l1 = 0.5, d.counters->load_sectors = 0.98;
  d.counters->stalls = {{"wait", 1}};
  EXPECT_NE(digest_text(d).find("spills 8 B; counted: L1 50 %, loads' sectors 98 %; waits: wait 100 %"),
            std::string::npos)
      << digest_text(d);
}

TEST(Digest, JsonRoundTripKeepsEveryFieldAlsoInAVerdict) {
  Digest d = memory_bound();
  d.spill_bytes = 12;
  d.counters = ProfilerCounters();
  d.counters->us = 19, d.counters->dram = 0.7, d.counters->store_sectors = 1,
  d.counters->occupancy_limiter = "blocks";
  d.counters->stalls = {{"barrier", 0.75}, {"wait", 0.25}};
  const auto read = digest_from_json(digest_to_json(d));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(digest_to_json(*read), digest_to_json(d));
  EXPECT_EQ(digest_text(*read), digest_text(d));
  Verdict v;
  v.digest = d;
  const auto verdict = Verdict::from_json(v.to_json());
  ASSERT_TRUE(verdict.ok()) << verdict.status().to_string();
  ASSERT_TRUE(verdict->digest.has_value());
  EXPECT_EQ(digest_to_json(*verdict->digest), digest_to_json(d));
}

TEST(Digest, VerdictsOfBeforeHaveNone) {
  const std::string old =
      R"({"status":"FASTER","failed_gate":"none","reason":"","max_error":0.4,"rms_error":0.1,"correctness_points":61,)"
      R"("guard":{"var":[[1,64,1]],"alignment_bytes":16},"timing":[],"e_value":1,"compile_ms":1,"evaluate_ms":2,)"
      R"("sandbox":"process"})";
  const auto read = Verdict::from_json(old);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_FALSE(read->digest.has_value());
  std::string bad = read->to_json();
  bad.back() = ',';
  for (const char* nonsense : {R"({"registers":"many"})", R"({"kernel_us":-3})", R"({"dram":1e300})", "5",
                               "[1]", R"({"kernel_us":1,"counters":5})"})
    EXPECT_EQ(Verdict::from_json(bad + R"("digest":)" + nonsense + '}').status().code(),
              dispatch::Code::kCorrupt)
        << nonsense;
}

}  // namespace
}  // namespace niche::evolve
