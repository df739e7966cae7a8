// The digest's arithmetic against values computed by hand and NVIDIA's occupancy calculator, and Nsight Compute's CSV.
#include "evolve/judge_device/device_digest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "evolve/cuda_template_family.h"
#include "evolve/judge_device/ncu_report.h"

namespace niche::evolve {
namespace {

dispatch::CudaInfo h200() {
  dispatch::CudaInfo i;
  i.major = 9;
  i.sm_count = 132;
  i.sm_clock_khz = 1'980'000, i.memory_clock_khz = 3'201'000, i.memory_bus_bits = 6144;
  i.threads_per_sm = 2048, i.registers_per_sm = 65536;
  i.shared_bytes_per_sm = 233472, i.shared_bytes_per_block = 232448;
  i.l2_bytes = 60 << 20;
  return i;
}

TEST(DevicePeaks, AreThoseOfTheStatedClocks) {
  const DevicePeaks p = DevicePeaks::of(h200());
  EXPECT_TRUE(p.known());
  EXPECT_NEAR(p.dram, 4916.7, 0.1);      // 2 x 3.201 GHz x 768 bytes
  EXPECT_NEAR(p.l2, 12390, 1);           // 132 x 47.4 bytes x 1.98 GHz
  EXPECT_NEAR(p.tensor16, 1070530, 10);  // 132 x 4096 x 1.98 GHz: 989 TFLOP/s at 1.83
  EXPECT_NEAR(p.fma32, 66908, 1);        // 132 x 128 lanes x 2 x 1.98 GHz
  dispatch::CudaInfo a100 = h200();
  a100.major = 8, a100.sm_count = 108, a100.sm_clock_khz = 1'410'000;
  EXPECT_NEAR(DevicePeaks::of(a100).tensor16, 311869, 10);  // its whitepaper: 312 TFLOP/s
  EXPECT_FALSE(DevicePeaks().known());
}

struct Row {
  int registers, threads, shared;
  int blocks;
  double warps;
  const char* limiter;
};

TEST(Occupancy, IsTheCalculators) {
  const DevicePeaks p = DevicePeaks::of(h200());
  for (const Row& r : {
           Row{32, 1024, 0, 2, 1.0, "threads"},
           Row{40, 256, 0, 6, 0.75, "registers"},     // 1,280 registers a warp: 12 in each of four parts
           Row{168, 384, 0, 1, 0.1875, "registers"},  // 5,376 a warp: 3 a part, 12 warps are one block
           Row{255, 1024, 0, 0, 0, "registers"},      // does not start
           Row{32, 256, 102400, 2, 0.25, "shared memory"},  // 101 KiB with the system's: twice in 228
           Row{32, 128, 232448, 1, 0.0625, "shared memory"}, Row{16, 32, 0, 32, 0.5, "blocks"},
           Row{33, 96, 0, 16, 0.75, "registers"},  // 1,280 a warp again: 48 warps, 3 a block
       }) {
    const Occupancy o = occupancy_of(p, r.registers, r.threads, r.shared);
    EXPECT_EQ(o.blocks_per_sm, r.blocks) << r.registers << ' ' << r.threads << ' ' << r.shared;
    EXPECT_DOUBLE_EQ(o.warps, r.warps) << r.registers << ' ' << r.threads << ' ' << r.shared;
    EXPECT_EQ(o.limiter, r.limiter) << r.registers << ' ' << r.threads << ' ' << r.shared;
  }
}

class ComputeDigest : public testing::Test {
 protected:
  ComputeDigest() {
    auto s = std::make_shared<dispatch::OpSchema>();
    s->op = "rows";
    s->axes = {{"M", dispatch::AxisKind::kVar}, {"N", dispatch::AxisKind::kConst}};
    s->args = {{"x", dispatch::ArgRole::kIn, "T", {0, 1}}, {"y", dispatch::ArgRole::kOut, "T", {0, 1}}};
    s->dtypes = {"f32", "bf16"};
    schema_ = s;
    use(dispatch::kBf16);
    cubin_.kernels = {{"run", 40, 0, 0, 0, 64}, {"sum", 200, 24, -1, -1, 0}};
    plan_.phases = {{"run", {{0, 2}}, 256, 0, 0, 1, false}};
  }
  void use(DLDataType type) {
    problem_.definition = *dispatch::Definition::make(schema_, type, {{"N", 4096}});
    problem_.axes[0] = 4096, problem_.axes[1] = 4096;
  }
  Digest digest(dispatch::Cost cost, double ns, bool from_dram = true, bool matrix = false) {
    return compute_digest(DevicePeaks::of(h200()), cubin_, plan_, {problem_, cost, ns, from_dram, matrix});
  }
  std::shared_ptr<const dispatch::OpSchema> schema_;
  dispatch::Problem problem_;
  CubinInfo cubin_;
  dispatch::CudaLaunchPlan plan_;
};

TEST_F(ComputeDigest, SharesAndRooflineOfARowKernel) {
  const Digest d = digest({6.7e7, 6.711e7}, 17970);
  EXPECT_EQ(d.var_axes, std::vector<int64_t>{4096});
  EXPECT_NEAR(d.kernel_us, 17.97, 1e-9);
  EXPECT_NEAR(d.dram, 6.711e7 / 17970 / 4916.736, 1e-6);  // 76 %
  EXPECT_NEAR(d.l2, 6.711e7 / 17970 / 12390.4, 1e-4);
  EXPECT_NEAR(d.fma, 6.7e7 / 17970 / 66908, 1e-5);
  EXPECT_LT(d.tensor, 0);
  EXPECT_NEAR(d.ridge, 1070530 / 4916.7, 0.1);
  EXPECT_NEAR(d.flops_per_byte, 6.7e7 / 6.711e7, 1e-9);
  EXPECT_NEAR(d.roof, d.dram, 1e-9);
  EXPECT_EQ(d.blocks, 2048);
  EXPECT_EQ(d.blocks_per_sm, 6);
  EXPECT_NEAR(d.waves, 2048.0 / (6 * 132), 1e-9);
  EXPECT_EQ(d.shared_bytes, 64);
  EXPECT_EQ(d.limiter, "registers");
}

TEST_F(ComputeDigest, WhatStaysInTheL2IsNoShareOfDram) {
  const Digest d = digest({6.7e7, 6.711e7}, 9000, false);
  EXPECT_LT(d.dram, 0);
  EXPECT_NEAR(d.l2, 6.711e7 / 9000 / 12390.4, 1e-4);
  EXPECT_NEAR(d.roof, d.l2, 1e-9);
}

TEST_F(ComputeDigest, TheMatrixPipeIsTheRoofOfNarrowProductsAlone) {
  const dispatch::Cost cost{5e11, 1e8};
  const Digest d = digest(cost, 1e6, true, true);
  EXPECT_NEAR(d.tensor, 5e5 / 1070530, 1e-5);
  EXPECT_LT(d.fma, 0);
  EXPECT_NEAR(d.roof, d.tensor, 1e-9);
  use(dispatch::kF32);
  const Digest f32 = digest(cost, 1e7);
  EXPECT_NEAR(f32.ridge, 66908 / 4916.7, 0.01);
  EXPECT_NEAR(f32.roof, 5e11 / 66908 / 1e7, 1e-4);
  EXPECT_TRUE(uses_matrix_pipe("asm volatile(\"wgmma.mma_async.sync.aligned.m64n64k16\""));
  EXPECT_TRUE(uses_matrix_pipe("mma.sync.aligned.m16n8k16.row.col"));
  EXPECT_FALSE(uses_matrix_pipe("float gamma = summa(x);"));
  const std::string preamble(cuda_preamble());
  EXPECT_FALSE(uses_matrix_pipe(preamble + "y = x;")) << "its wrappers are in every text";
  EXPECT_TRUE(uses_matrix_pipe(preamble + "mma<T>(acc, a, b0, b1);"));
  const Digest split = digest({5e11, 1e8}, 1e7, true, true);
  EXPECT_NEAR(split.tensor, 5e11 / (1070530 / 6.0) / 1e7, 1e-4) << "three products of tf32 for one of fp32";
  EXPECT_NEAR(split.roof, split.tensor, 1e-9);
}

TEST_F(ComputeDigest, TheLargestLaunchIsLookedAtAndSpillsOfAllCount) {
  plan_.phases = {{"run", {{0, 64}}, 256, 1024, 0, 1, false}, {"sum", {{1, 1}}, 128, 0, 2, 4, true}};
  const Digest d = digest({1e6, 1e6}, 5000);
  EXPECT_EQ(d.symbol, "sum") << "64 blocks of 256 threads against 264 of 128";
  plan_.phases[0].factors[0].divisor = 16;
  const Digest more = digest({1e6, 1e6}, 5000);
  EXPECT_EQ(more.symbol, "run");
  EXPECT_EQ(more.blocks, 256);
  EXPECT_EQ(more.shared_bytes, 1088);
  EXPECT_EQ(more.spill_bytes, 24) << "the log says nothing of 'sum': its stack stands for it";
}

TEST_F(ComputeDigest, APersistentGridIsItsOwnLimit) {
  plan_.phases[0].blocks_per_sm = 2;
  const Digest d = digest({1e6, 1e6}, 5000);
  EXPECT_EQ(d.blocks, 264);
  EXPECT_EQ(d.blocks_per_sm, 2);
  EXPECT_DOUBLE_EQ(d.occupancy, 0.25);
  EXPECT_EQ(d.limiter, "its own grid");
  EXPECT_DOUBLE_EQ(d.waves, 1);
}

// ---- Nsight Compute's report: two real ones of an H200 (of some 2,200 columns those that are read), its forms where these
// do not occur there, and some that are cut off. bench/cuda/ncu_digest_test.py holds the script to the same.

constexpr const char* kFixtures = NICHE_SOURCE_DIR "/tests/fixtures/ncu/";

std::string recorded(const std::string& file) {
  std::ifstream in(kFixtures + file);
  EXPECT_TRUE(in) << file;
  return {std::istreambuf_iterator<char>(in), {}};
}

void expect_counters(const ProfilerCounters& c, const nlohmann::json& wanted, const std::string& where) {
  const std::pair<const char*, double> shares[] = {{"us", c.us},
                                                   {"dram", c.dram},
                                                   {"l2", c.l2},
                                                   {"l1", c.l1},
                                                   {"tensor", c.tensor},
                                                   {"issue", c.issue},
                                                   {"occupancy", c.occupancy},
                                                   {"load_sectors", c.load_sectors},
                                                   {"store_sectors", c.store_sectors}};
  for (const auto& [name, value] : shares) {
    if (wanted.contains(name))
      EXPECT_NEAR(value, wanted[name].get<double>(), 1e-7) << where << ' ' << name;
    else
      EXPECT_LT(value, 0) << where << ' ' << name << ": what was not measured is unknown";
  }
  EXPECT_EQ(c.occupancy_limiter, wanted.value("occupancy_limiter", "")) << where;
  ASSERT_EQ(c.stalls.size(), wanted["stalls"].size()) << where;
  for (const auto& [name, share] : c.stalls)
    EXPECT_NEAR(share, wanted["stalls"].value(name, -1.0), 1e-7) << where << ' ' << name;
}

TEST(NcuReport, SaysWhatTheFixturesExpect) {
  const auto expected = nlohmann::json::parse(recorded("expected.json"));
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFixtures)) files += entry.is_regular_file();
  EXPECT_EQ(expected.size() + 1, files);
  for (const auto& [file, wanted] : expected.items()) {
    const auto read = read_ncu_report(recorded(file));
    if (wanted.contains("error")) {
      ASSERT_FALSE(read.ok()) << file;
      EXPECT_EQ(read.status().code(), dispatch::Code::kCorrupt) << file;
      EXPECT_NE(read.status().message().find(wanted["error"].get<std::string>()), std::string::npos)
          << file << ": " << read.status().message();
      continue;
    }
    ASSERT_TRUE(read.ok()) << file << ": " << read.status().to_string();
    ASSERT_EQ(read->size(), wanted["launches"].size()) << file;
    for (size_t i = 0; i < read->size(); ++i) {
      EXPECT_EQ(read->at(i).kernel, wanted["launches"][i]["kernel"].get<std::string>()) << file;
      expect_counters(read->at(i).counters, wanted["launches"][i], file);
    }
  }
}

TEST(NcuReport, IsDiagnosedWithWhatIsComputedOfTheSameLaunch) {
  const auto norm = read_ncu_report(recorded("rms_norm_h200.csv"));
  ASSERT_TRUE(norm.ok()) << norm.status().to_string();
  const ProfilerCounters& c = norm->at(0).counters;
  // 40 registers, 256 threads.
  EXPECT_EQ(occupancy_of(DevicePeaks::of(h200()), 40, 256, 0).blocks_per_sm, 6) << "ncu says 6, too";
  EXPECT_EQ(occupancy_of(DevicePeaks::of(h200()), 40, 256, 0).limiter, c.occupancy_limiter);
  Digest d;
  d.kernel_us = 17.97, d.dram = 0.76, d.flops_per_byte = 1, d.ridge = 218, d.roof = 0.76;
  d.counters = c;
  EXPECT_EQ(diagnose(d).bottleneck, "memory");
  EXPECT_NE(diagnose(d).because.find("the L2 at 81 %"), std::string::npos) << diagnose(d).because;

  const auto conv = read_ncu_report(recorded("conv1d_h200.csv"));
  ASSERT_TRUE(conv.ok()) << conv.status().to_string();
  d = Digest();
  d.kernel_us = 11.8, d.flops_per_byte = 100, d.ridge = 218, d.roof = 0.3;
  d.counters = conv->at(0).counters;
  EXPECT_EQ(diagnose(d).bottleneck, "latency");
  EXPECT_NE(diagnose(d).because.find("warps wait most for wait"), std::string::npos) << diagnose(d).because;
}

}  // namespace
}  // namespace niche::evolve
