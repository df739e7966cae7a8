// CudaToolchain compiles for real: NVRTC needs no GPU.
#include "evolve/toolchain/cuda_toolchain.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/evolve/temp_dir.h"

namespace niche::evolve {
namespace {

using dispatch::Code;

std::unique_ptr<CudaToolchain> toolchain(const std::string& cache_dir = "") {
  auto t = CudaToolchain::find({.cache_dir = cache_dir});
  EXPECT_TRUE(t.ok()) << t.status().to_string();
  return t.ok() ? std::move(*t) : nullptr;
}

constexpr const char* kAdd =
    R"(extern "C" __global__ void __launch_bounds__(128) add(float* x, const float* y, int n) {
  __shared__ float s[128];
  const int i = blockIdx.x * 128 + threadIdx.x;
  s[threadIdx.x] = i < n ? y[i] : 0.0f;
  __syncthreads();
  if (i < n) x[i] += s[127 - threadIdx.x];
})";

// Far more live values than 32 registers hold, under a launch bound that leaves 32.
constexpr const char* kSpills =
    R"(extern "C" __global__ void __launch_bounds__(1024, 2) spill(float* x) {
  float v[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) x[(95 - i) * 1024 + threadIdx.x] = v[i] * v[(i * 7 + 3) % 96];
})";

TEST(CudaToolchain, CompilesForEveryArchitectureThatGuardsName) {
  const auto t = toolchain();
  ASSERT_NE(t, nullptr);
  EXPECT_TRUE(t->version().starts_with("NVRTC 1")) << t->version();
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
    const auto c = t->compile("add", kAdd, arch);
    ASSERT_TRUE(c.ok()) << c.status().to_string();
    ASSERT_EQ(c->info.kernels.size(), 1u);
    const CubinKernel& k = c->info.kernels[0];
    EXPECT_EQ(k.symbol, "add");
    EXPECT_GE(k.registers, 6);
    EXPECT_LE(k.registers, 40);
    EXPECT_EQ(k.stack_bytes, 0);
    EXPECT_EQ(k.spill_store_bytes, 0);
    EXPECT_EQ(k.static_shared_bytes, 512) << c->log;
    // What ptxas reports and what the ELF says are two sources of one number.
    EXPECT_NE(c->log.find("Used " + std::to_string(k.registers) + " registers"), std::string::npos) << c->log;
  }
}

TEST(CudaToolchain, SpillsAreSeen) {
  const auto t = toolchain();
  ASSERT_NE(t, nullptr);
  const auto c = t->compile("spill", kSpills, "sm_90a");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  const CubinKernel* k = c->info.find("spill");
  ASSERT_NE(k, nullptr);
  EXPECT_GT(k->spill_store_bytes, 0) << c->log;
  EXPECT_GT(k->stack_bytes, 0);
  EXPECT_EQ(k->registers, 32);
}

TEST(CudaToolchain, InstructionsOfOneArchitectureAreRefusedOnAnother) {
  const auto t = toolchain();
  ASSERT_NE(t, nullptr);
  const std::string text =
      R"(extern "C" __global__ void k() { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); })";
  EXPECT_TRUE(t->compile("k", text, "sm_90a").ok());
  const auto refused = t->compile("k", text, "sm_80");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("sm_80"), std::string::npos) << refused.status().message();
}

TEST(CudaToolchain, ErrorsNameTheLineAndStartThere) {
  const auto t = toolchain();
  ASSERT_NE(t, nullptr);
  const auto c = t->compile("broken", "extern \"C\" __global__ void k() {\n  undeclared = 1;\n}\n", "sm_90a");
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.status().code(), Code::kInvalid);
  EXPECT_NE(c.status().message().find("broken.cu(2): error"), std::string::npos) << c.status().message();
}

TEST(CudaToolchain, TextThatReadsFilesOrHasNoKernelIsRefusedBeforeItIsCompiled) {
  const auto t = toolchain();
  ASSERT_NE(t, nullptr);
  const std::string kernel = "\nextern \"C\" __global__ void k() {}\n";
  for (const char* head :
       {"#include \"/etc/passwd\"", "# include </etc/passwd>", "#\\\ninclude </etc/passwd>",
        "#/**/include </etc/passwd>", "#embed \"x\"", "#if __has_include(\"/etc/passwd\")\n#endif"}) {
    const auto c = t->compile("reads", head + kernel, "sm_90a");
    ASSERT_FALSE(c.ok()) << head;
    EXPECT_NE(c.status().message().find("refused"), std::string::npos)
        << head << ": " << c.status().message();
  }
  EXPECT_FALSE(t->compile("host", "int f() { return 1; }", "sm_90a").ok());
  EXPECT_EQ(t->compile("arch", kernel, "sm_12345").status().code(), Code::kInvalid);
  EXPECT_EQ(t->compile("arch", kernel, "sm_90a --include-path=/").status().code(), Code::kInvalid);
}

TEST(CudaToolchain, StateThatOutlivesACallIsRefused) {
  const auto t = toolchain();
  ASSERT_NE(t, nullptr);
  const auto c = t->compile(
      "stateful",
      "__device__ int calls;\nextern \"C\" __global__ void k(int* x) { *x = atomicAdd(&calls, 1); }",
      "sm_90a");
  ASSERT_FALSE(c.ok());
  EXPECT_NE(c.status().message().find("4 bytes of writable module variables (calls)"), std::string::npos)
      << c.status().message();
}

// NVRTC gives a namespace-scope constexpr variable that a kernel takes the address of writable memory.
TEST(CudaToolchain, ConstantsOfAFileThatBecomeWritableMemoryAreRefusedByName) {
  const auto t = toolchain();
  ASSERT_NE(t, nullptr);
  const auto table = [](const std::string& how) {
    return how +
           " int primes[4] = {2, 3, 5, 7};\n"
           "extern \"C\" __global__ void k(int* x) { *x = primes[threadIdx.x & 3]; }";
  };
  const auto refused = t->compile("table", table("__device__ constexpr"), "sm_90a");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("primes"), std::string::npos) << refused.status().message();
  EXPECT_TRUE(t->compile("table", table("__constant__"), "sm_90a").ok());
}

TEST(CudaToolchain, CacheAnswersTheSecondCompileAndDistrustsDamage) {
  const TempDir dir;
  const auto t = toolchain(dir.path());
  ASSERT_NE(t, nullptr);
  const auto first = t->compile("add", kAdd, "sm_90a");
  const auto second = t->compile("add", kAdd, "sm_90a");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(first->cached);
  EXPECT_TRUE(second->cached);
  EXPECT_EQ(first->bytes, second->bytes);
  EXPECT_EQ(first->log, second->log);
  EXPECT_EQ(second->info.kernels[0].static_shared_bytes, 512);
  EXPECT_FALSE(t->compile("add", kAdd, "sm_80")->cached);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    std::fstream f(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(200);
    f.put('~');
    ++files;
  }
  EXPECT_EQ(files, 2);
  const auto third = t->compile("add", kAdd, "sm_90a");
  ASSERT_TRUE(third.ok());
  EXPECT_FALSE(third->cached);
  EXPECT_EQ(first->bytes, third->bytes);
}

TEST(CudaToolchain, MissingNvrtcIsAStatusThatSaysWhereItLooked) {
  const auto t = CudaToolchain::find({.library = "libniche_no_nvrtc.so"});
  ASSERT_FALSE(t.ok());
  EXPECT_EQ(t.status().code(), Code::kUnsupported);
  EXPECT_NE(t.status().message().find("libniche_no_nvrtc.so"), std::string::npos);
  EXPECT_FALSE(CudaToolchain::find({.library = "libc.so.6"}).ok());
}

TEST(CubinInfo, TruncatedCubinsAreCorruptAndNeverReadPastTheEnd) {
  const auto t = toolchain();
  ASSERT_NE(t, nullptr);
  const auto c = t->compile("add", kAdd, "sm_90a");
  ASSERT_TRUE(c.ok());
  for (size_t bytes = 0; bytes < c->bytes.size(); bytes += 7) {
    const std::vector<uint8_t> cut(c->bytes.begin(), c->bytes.begin() + static_cast<std::ptrdiff_t>(bytes));
    EXPECT_FALSE(read_cubin(cut, "").ok()) << bytes;
  }
  const auto without_log = read_cubin(c->bytes, "");
  ASSERT_TRUE(without_log.ok());
  EXPECT_EQ(without_log->kernels[0].spill_store_bytes, -1);
  EXPECT_EQ(without_log->kernels[0].registers, c->info.kernels[0].registers);
}

}  // namespace
}  // namespace niche::evolve
