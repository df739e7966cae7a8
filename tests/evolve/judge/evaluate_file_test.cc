#include "evolve/judge/evaluate_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "evolve/judge/failed_case.h"
#include "kernels.h"
#include "test_ops.h"

namespace niche::evolve {
namespace {

using namespace test_ops;  // NOLINT

EvaluatorSpec spec() {
  auto op = std::make_shared<NormOp>();
  return {op, *Definition::make(op->schema(), kF32, {{"N", 512}}), {{{8}, 1}}, {}};
}

TEST(EvaluateFile, DirectivesBecomeThePlan) {
  const auto c = candidate_from_text(*spec().definition, "k.cc",
                                     "// niche: name test_norm.f32.mine\n"
                                     "// niche: phase a tasks=M/4*N/32 parallel_min=9\n"
                                     "// niche: phase b\n"
                                     "// niche: pack p bytes=128\n"
                                     "// niche: workspace 4096\n"
                                     "// niche: align 32\n"
                                     "// niche: limit M=4..4096%4\n"
                                     "// niche: flag -fno-trapping-math\n"
                                     "// niche: nondeterministic\n"
                                     "int x;\n");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  const KernelSource& s = c->source;
  ASSERT_EQ(s.plan.phases.size(), 2u);
  EXPECT_EQ(s.plan.phases[0].symbol, "a");
  const int64_t axes[] = {9, 512};
  EXPECT_EQ(s.plan.phases[0].tasks(axes), 3 * 16);
  EXPECT_EQ(s.plan.phases[0].parallel_min_tasks, 9);
  EXPECT_EQ(s.plan.phases[1].tasks(axes), 1);
  EXPECT_EQ(s.plan.pack_symbol, "p");
  EXPECT_EQ(s.plan.packed_bytes, 128);
  EXPECT_EQ(s.plan.workspace_bytes, 4096);
  EXPECT_EQ(s.limits.alignment_bytes, 32);
  EXPECT_EQ(s.limits.var[0].lo, 4);
  EXPECT_EQ(s.limits.var[0].hi, 4096);
  EXPECT_EQ(s.limits.var[0].multiple_of, 4);
  EXPECT_FALSE(s.properties.deterministic);
  EXPECT_EQ(s.kernel_name, "test_norm.f32.mine");
}

TEST(CandidateText, GoesThereAndBack) {
  const std::string text =
      "// niche: preamble\n// niche: phase work tasks=M/4\n// niche: phase rest\n// niche: pack work2 "
      "bytes=64\n"
      "// niche: limit M=4..4096%4\n// niche: batch_variant\nvoid work2() { work(1); workshop(); }\n";
  auto c = candidate_from_text(*spec().definition, "k.cc", text);
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  const std::string again = candidate_to_text(*spec().definition, c->source);
  auto d = candidate_from_text(*spec().definition, "k.cc", again);
  ASSERT_TRUE(d.ok()) << d.status().to_string() << again;
  EXPECT_EQ(candidate_to_text(*spec().definition, d->source), again);
  ASSERT_EQ(d->source.plan.phases.size(), 2U);
  EXPECT_EQ(d->source.plan.phases[0].factors[0].divisor, 4);
  EXPECT_TRUE(d->source.plan.phases[1].factors.empty());
  EXPECT_EQ(d->source.limits.var[0].multiple_of, 4);
  EXPECT_FALSE(d->source.properties.batch_invariant);
  rename_entries(d->source, "_k7");
  EXPECT_EQ(d->source.plan.phases[0].symbol, "work_k7");
  EXPECT_EQ(d->source.plan.pack_symbol, "work2_k7");
  EXPECT_NE(d->source.text.find("void work2_k7() { work_k7(1); workshop(); }"), std::string::npos);
}

TEST(EvaluateFile, ErrorsNameFileAndLine) {
  const struct {
    const char *text, *words;
  } cases[] = {{"\n// niche: phase a tasks=Q/4\n", "k.cc line 2: unknown axis 'Q'"},
               {"// niche: phase a tasks=M/0\n", "line 1: tasks: bad divisor"},
               {"// niche: phase a parallel_min=-9\n", "'parallel_min=-9': a number of tasks, at least 1"},
               {"// niche: phase a parallel_min=0\n", "at least 1"},
               {"// niche: phase a parallel_min=9x\n", "at least 1"},
               {"// niche: workspace lots\n", "expects a number"},
               {"// niche: pack p\n", "pack: expected"},
               {"// niche: limit N=1..2\n", "'N' is not a variable axis"},
               {"// niche: limit M=1\n", "limit: expected"},
               {"// niche: magic 3\n", "unknown directive 'magic'"},
               {"// niche:\n", "an empty directive"},
               {"int x;", "0 functions are declared"},
               {"extern \"C\" void a(int); extern \"C\" void b(int);", "2 functions are declared"}};
  for (const auto& c : cases) {
    const auto r = candidate_from_text(*spec().definition, "k.cc", c.text);
    ASSERT_FALSE(r.ok()) << c.text;
    EXPECT_EQ(r.status().code(), Code::kInvalid);
    EXPECT_NE(r.status().message().find(c.words), std::string::npos) << r.status().message();
  }
}

struct TextFile {
  explicit TextFile(const std::string& text) {
    char name[] = "/tmp/niche_file_XXXXXX";
    directory = mkdtemp(name);
    path = directory + "/k.cc";
    std::ofstream(path) << text;
  }
  ~TextFile() { std::filesystem::remove_all(directory); }
  std::string directory, path;
};

TEST(EvaluateFile, AProgramForADeviceIsNotJudgedForTheCpu) {
  const TextFile file(
      "// niche: preamble\n// niche: phase run grid=M threads=256\n"
      "extern \"C\" __global__ void run(const NicheKernelArgs k) {}\n");
  const auto j = evaluate_file(file.path, spec());
  ASSERT_FALSE(j.ok());
  EXPECT_EQ(j.status().code(), Code::kInvalid);
  for (const std::string& words : {file.path + " line 3", std::string("CUDA device"),
                                   std::string("--device cuda:0"), std::string("built with CUDA")})
    EXPECT_NE(j.status().message().find(words), std::string::npos) << j.status().message();
}

// Right but for the last row of more than one, so that it fails at some problem of the guard.
constexpr const char* kWrongInTheLastRow =
    "// niche: preamble\n// niche: phase mine tasks=M\n"
    "extern \"C\" void mine(const NicheKernelArgs* k, long b, long e) noexcept {\n"
    "  for (long i = b; i < e; ++i) {\n"
    "    const float* x = (const float*)k->p[0] + i * 512; const float* w = (const float*)k->p[1];\n"
    "    float* y = (float*)k->p[2] + i * 512; float t = 0;\n"
    "    for (int j = 0; j < 512; ++j) t += x[j] * x[j];\n"
    "    t = 1 / __builtin_sqrtf(t / 512 + (float)k->a[0]);\n"
    "    if (i == k->n[0] - 1 && i > 0) t *= 1.01f;\n"
    "    for (int j = 0; j < 512; ++j) y[j] = x[j] * t * w[j]; } }\n";

std::vector<uint8_t> elements_of(const std::string& npy) {
  std::ifstream in(npy, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(all.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8)) << npy;
  if (all.size() < 10) return {};
  const size_t data = 10 + static_cast<unsigned char>(all[8]) + 256 * static_cast<unsigned char>(all[9]);
  EXPECT_EQ(data % 64, 0u);
  return {all.begin() + static_cast<std::ptrdiff_t>(data), all.end()};
}

TEST(EvaluateFile, TheFirstFailureCanBeMadeAgain) {
  const TextFile file(kWrongInTheLastRow);
  EvaluatorOptions options;
  options.seed = 11;
  EvaluatorSpec both = spec();
  both.problems = {{{1}, 1}, {{8}, 1}};
  const auto j = evaluate_file(file.path, both, options);
  ASSERT_TRUE(j.ok()) << j.status().to_string();
  const Verdict& v = j->judgement.verdict;
  ASSERT_EQ(v.status, VerdictStatus::kRejected) << v.to_json();
  ASSERT_TRUE(v.failed_case.has_value()) << v.to_json();
  EXPECT_GT(v.failed_case->var_axes.at(0), 1) << "one row alone is right";
  EXPECT_NE(v.reason.find("M=" + std::to_string(v.failed_case->var_axes[0])), std::string::npos) << v.reason;
  // The same seed: the same inputs.
  const auto again = evaluate_file(file.path, both, options);
  ASSERT_TRUE(again.ok() && again->judgement.verdict.failed_case);
  EXPECT_EQ(again->judgement.verdict.failed_case->seed, v.failed_case->seed);
  options.seed = 12;
  const auto other = evaluate_file(file.path, both, options);
  ASSERT_TRUE(other.ok() && other->judgement.verdict.failed_case);
  EXPECT_NE(other->judgement.verdict.failed_case->seed, v.failed_case->seed);

  const std::string to = file.directory + "/case";
  const auto files = write_failed_case(*both.op, both.definition, *v.failed_case, to);
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  ASSERT_EQ(files->size(), 3u);
  const auto x = elements_of(to + "/x.npy"), w = elements_of(to + "/w.npy"),
             y = elements_of(to + "/y.expected.npy");
  const int64_t rows = v.failed_case->var_axes[0];
  ASSERT_EQ(x.size(), static_cast<size_t>(rows) * 512 * sizeof(float));
  ASSERT_EQ(w.size(), 512 * sizeof(float));
  ASSERT_EQ(y.size(), static_cast<size_t>(rows) * 512 * sizeof(double));
  const auto at = [](const std::vector<uint8_t>& bytes, size_t i, auto type) {
    std::memcpy(&type, bytes.data() + i * sizeof type, sizeof type);
    return type;
  };
  const size_t last = static_cast<size_t>(rows - 1) * 512;
  double mean = 0;
  for (size_t i = 0; i < 512; ++i) mean += std::pow(static_cast<double>(at(x, last + i, 0.0f)), 2) / 512;
  for (size_t i = 0; i < 512; ++i) {
    const double want = at(x, last + i, 0.0f) * at(w, i, 0.0f) / std::sqrt(mean + 1e-5);
    EXPECT_NEAR(at(y, last + i, 0.0), want, 1e-4 * std::abs(want) + 1e-9) << i;
  }
  EXPECT_EQ(write_failed_case(*both.op, both.definition, *v.failed_case, file.path + "/x").status().code(),
            Code::kIo);
}

TEST(EvaluateFile, FileIsJudgedAndDiagnosticsCountItsOwnLines) {
  char dir[] = "/tmp/niche_file_XXXXXX";
  ASSERT_NE(mkdtemp(dir), nullptr);
  const std::string path = std::string(dir) + "/k.cc";
  std::ofstream(path)
      << "// niche: preamble\n// niche: phase mine tasks=M\n// niche: align 4\n"
         "extern \"C\" void mine(const NicheKernelArgs* k, long b, long e) noexcept {\n"
         "  for (long i = b; i < e; ++i) {\n"
         "    const float* x = (const float*)k->p[0] + i * 512; const float* w = (const float*)k->p[1];\n"
         "    float* y = (float*)k->p[2] + i * 512; float s[8] = {};\n"
         "    for (int j = 0; j < 512; j += 8) for (int l = 0; l < 8; ++l) s[l] += x[j + l] * x[j + l];\n"
         "    float t = 0; for (float v : s) t += v;\n"
         "    t = 1 / __builtin_sqrtf(t / 512 + (float)k->a[0]);\n"
         "    for (int j = 0; j < 512; ++j) y[j] = x[j] * t * w[j]; } }\n";
  EvaluatorOptions options;
  options.seed = 7;
  auto j = evaluate_file(path, spec(), options);
  ASSERT_TRUE(j.ok()) << j.status().to_string();
  EXPECT_EQ(j->judgement.verdict.status, VerdictStatus::kFaster) << j->judgement.verdict.to_json();

  std::ofstream(path)
      << "// niche: preamble\nextern \"C\" void mine(const NicheKernelArgs* k, long, long) {\n  oops;\n}\n";
  j = evaluate_file(path, spec(), options);
  ASSERT_TRUE(j.ok()) << j.status().to_string();
  EXPECT_EQ(j->judgement.verdict.failed_gate, Gate::kCompile);
  EXPECT_EQ(j->judgement.verdict.reason.rfind("kernel:3:", 0), 0u) << j->judgement.verdict.reason;
  std::filesystem::remove_all(dir);

  EXPECT_EQ(evaluate_file(path, spec()).status().code(), Code::kIo);
}

}  // namespace
}  // namespace niche::evolve
