#include "evolve/toolchain/cpp_toolchain.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "evolve/toolchain/binary_check.h"
#include "evolve/toolchain/source_check.h"

namespace niche::evolve {
namespace {

constexpr const char* kArgs =
    "struct A { void* const* p; const long* n; const double* a; void* ws; const void* packed; };\n";

class CppToolchainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/niche_toolchain_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
    CompileLimits limits;
    limits.cpu_seconds = 3;
    auto t = CppToolchain::find("", dir_, limits);
    ASSERT_TRUE(t.ok()) << t.status().to_string();
    toolchain_ = std::move(*t);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  dispatch::Result<CompiledObject> compile(const std::string& text,
                                           const std::vector<std::string>& flags = {}) {
    const SourceUnit unit{"unit", text, {"k"}};
    return toolchain_->compile(std::span(&unit, 1), flags);
  }
  // The message that refuses `text`, from compile or from the check of the binary; empty: accepted.
  std::string refusal(const std::string& text) {
    auto built = compile(text);
    if (!built.ok()) return built.status().message();
    const std::vector<std::string> exports = {"k"};
    auto facts = check_binary(built->bytes, exports);
    return facts.ok() ? "" : facts.status().message();
  }

  std::string dir_;
  std::unique_ptr<CppToolchain> toolchain_;
};

TEST_F(CppToolchainTest, KernelBecomesACleanObjectWithItsEntriesAlone) {
  const std::string text = std::string(kArgs) +
                           "void helper(float* x) { x[0] *= 2; }\n"
                           "extern \"C\" void k(const A* a, long b, long e) {"
                           "  for (long i = b; i < e; ++i) helper((float*)a->p[0] + i); }\n";
  auto built = compile(text);
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  const std::vector<std::string> exports = {"k"};
  auto facts = check_binary(built->bytes, exports);
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  EXPECT_EQ(facts->exports, exports);
  EXPECT_GT(facts->code_bytes, 10);
  EXPECT_TRUE(std::filesystem::is_empty(dir_)) << "compiler files left behind";
}

TEST_F(CppToolchainTest, UnitsShareACompileWithoutMeeting) {
  const std::string a =
      std::string(kArgs) + "static int z() { return 1; } extern \"C\" int ka() { return z(); }";
  const std::string b =
      std::string(kArgs) + "static int z() { return 2; } extern \"C\" int kb() { return z(); }";
  const SourceUnit units[] = {{"a", a, {"ka"}}, {"b", b, {"kb"}}};
  auto built = toolchain_->compile(units, {});
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  const std::vector<std::string> exports = {"ka", "kb"};
  EXPECT_TRUE(check_binary(built->bytes, exports).ok());
}

TEST_F(CppToolchainTest, DiagnosticsStartAtTheFirstErrorAndNameTheUnit) {
  auto built = compile("\n\nextern \"C\" void k() { return undeclared; }");
  ASSERT_FALSE(built.ok());
  EXPECT_EQ(built.status().code(), dispatch::Code::kInvalid);
  EXPECT_EQ(built.status().message().rfind("unit:3:", 0), 0u) << built.status().message();
}

TEST_F(CppToolchainTest, SecretsOfTheMachineStayUnread) {
  for (const char* text :
       {"#include \"/etc/passwd\"\n", "  #  include </etc/passwd>\n", "%:include \"/etc/passwd\"\n",
        "/* */ #include_next <x>\n", "#pragma GCC dependency \"/etc/passwd\"\n", "#import \"/etc/passwd\"\n",
        "#if __has_include(\"/etc/shadow\")\n#endif\n", "# 1 \"/etc/passwd\"\n", "#embed \"/etc/passwd\"\n",
        "asm(\".incbin \\\"/etc/passwd\\\"\");\n", "#define A as##m\n", "#inc\\\nlude \"/etc/passwd\"\n",
        "_Pragma(\"GCC dependency \\\"/etc/passwd\\\"\")\n", "// comment \\\n#include \"/etc/passwd\"\n"}) {
    auto built = compile(std::string(text) + "extern \"C\" void k() {}");
    ASSERT_FALSE(built.ok()) << text;
    EXPECT_NE(built.status().message().find("line "), std::string::npos) << built.status().message();
  }
}

TEST_F(CppToolchainTest, FlagsBeyondTheListAreRefusedByName) {
  for (const char* flag : {"-fplugin=x.so", "-I/etc", "-include", "@file", "-ffinite-math-only", "-o"}) {
    auto built = compile("extern \"C\" void k() {}", {flag});
    ASSERT_FALSE(built.ok());
    EXPECT_NE(built.status().message().find(flag), std::string::npos);
  }
  EXPECT_TRUE(compile("extern \"C\" void k() {}", {"-fno-trapping-math", "-O2"}).ok());
}

TEST_F(CppToolchainTest, BinaryGateNamesWhatIsRefused) {
  const struct {
    const char* text;
    const char* word;
  } cases[] = {
      {"static int n; extern \"C\" int k() { return ++n; }", "writable global"},
      {"static float t[8] = {1}; extern \"C\" float* k() { return t; }", "writable global"},
      {"struct S { S(); float x; }; static float f(); static S s; S::S() : x(f()) {} static float f() { "
       "return 1; }"
       "extern \"C\" float k() { return s.x; }",
       "constructor"},
      {"extern \"C\" void* malloc(unsigned long); extern \"C\" void* k() { return malloc(8); }", "malloc"},
      {"extern \"C\" long syscall(long, ...); extern \"C\" long k() { return syscall(39); }", "syscall"},
      {"extern \"C\" unsigned long long k() { return __builtin_ia32_rdtsc(); }", "rdtsc"},
      {"extern \"C\" void k(unsigned v) { __builtin_ia32_ldmxcsr(v); }", "ldmxcsr"},
      {"__attribute__((constructor)) static void c() {} extern \"C\" void k() {}", "constructor"},
      {"const unsigned char c[] __attribute__((section(\".text\"))) = {15, 5}; extern \"C\" void k() { "
       "((void (*)())c)(); }",
       "section"},
      {"extern \"C\" void k() { asm volatile(\"syscall\"); }", "assembly"},
      {"thread_local int t; extern \"C\" int k() { return ++t; }", "thread_local"},
      {"extern \"C\" void other() {}", "k"},
  };
  for (const auto& c : cases) {
    const std::string message = refusal(c.text);
    EXPECT_NE(message.find(c.word), std::string::npos) << c.text << "\n-> " << message;
  }
}

TEST_F(CppToolchainTest, RegisterPinIsLetThrough) {
  EXPECT_EQ(
      refusal(
          "extern \"C\" void k(float* x) { float v = x[0]; asm volatile(\"\" : \"+x\"(v)); x[0] = v * 2; }"),
      "");
}

TEST_F(CppToolchainTest, EndlessCompileHitsItsLimit) {
  // Exponential template instantiation.
  auto built = compile(
      "template <int N, int M> struct F { static constexpr long v = F<N - 1, 2 * M>::v + F<N - 1, 2 * M + "
      "1>::v; };"
      "template <int M> struct F<0, M> { static constexpr long v = M; };"
      "extern \"C\" long k() { return F<28, 0>::v; }");
  ASSERT_FALSE(built.ok());
  EXPECT_EQ(built.status().code(), dispatch::Code::kBusy) << built.status().to_string();
  EXPECT_NE(built.status().message().find("limit"), std::string::npos);
}

TEST_F(CppToolchainTest, HugeOutputHitsItsLimit) {
  auto built = compile(
      "extern \"C\" { extern const char big[1L << 26]; const char big[1L << 26] = {1}; }"
      "extern \"C\" char k(long i) { return big[i]; }");
  ASSERT_FALSE(built.ok());
}

TEST(CppToolchain, MissingCompilerNamesWhereItLooked) {
  auto t = CppToolchain::find("no-such-compiler", "/tmp");
  ASSERT_FALSE(t.ok());
  EXPECT_EQ(t.status().code(), dispatch::Code::kNotFound);
  EXPECT_NE(t.status().message().find("no-such-compiler"), std::string::npos);
}

TEST(SourceCheck, OrdinaryKernelTextPasses) {
  const auto s = check_source(
      "k",
      "#define VEC 8 // it's fine\n#ifdef __AVX2__\n#endif\n#pragma GCC unroll 4\n"
      "typedef float f32x8 __attribute__((vector_size(32), aligned(4)));\n"
      "extern \"C\" void k(long x) { long y = 1'000'000; char c = '#'; const char* s = \"#include\";"
      " asm(\"\" : \"+r\"(x)); for (;;) break; int a = x % 3; (void)a; (void)y; (void)c; (void)s; }\n");
  EXPECT_TRUE(s.ok()) << s.to_string();
}

}  // namespace
}  // namespace niche::evolve
