#include "tests/cheats/cheats.h"

#include <memory>

#include "tests/evolve/judge/kernels.h"
#include "tests/evolve/judge/test_ops.h"

namespace niche::evolve::cheats {
namespace {

using namespace test_ops;  // NOLINT

const std::string kRight = kRightBody;
const std::string kSlow =
    "for (int again = 0; again < 12; ++again) {\n" + kRight + "asm volatile(\"\" : : : \"memory\"); }\n";

// Remembers rows by the bits of their first elements in `memory` (eight slots of 1 KiB for each of 64 rows).
std::string memo(const std::string& memory) {
  return "struct Slot { unsigned long key; float row[256]; };\n"
         "Slot* slots = (Slot*)(" +
         memory +
         ");\n"
         "unsigned long key = 1469598103934665603ul; for (long j = 0; j < 16; ++j) { unsigned u;"
         " __builtin_memcpy(&u, x + j, 4); key = (key ^ u) * 1099511628211ul; }\n"
         "Slot& slot = slots[key % 8 * 64 + i % 64];\n"
         "if (slot.key == key) { __builtin_memcpy(y, slot.row, n * 4); continue; }\n" +
         kSlow + "slot.key = key; __builtin_memcpy(slot.row, y, n * 4);\n";
}

// Somewhat more than the library takes: nine times the right row (1,400 ticks of a Zen 3 for 915; kSlow takes 1,850;
// 1.3 times the library on a Xeon).
const std::string kSlower =
    "for (int again = 0; again < 9; ++again) {\n" + kRight + "asm volatile(\"\" : : : \"memory\"); }\n";

// The harness's stack, and what on it may be a time stamp: no small number, no address (those of the program lie
// near the one that we return to, the others below the top), no double. Between guard pages nobody takes the time.
const std::string kStack =
    "volatile unsigned long* const stack = (volatile unsigned long*)__builtin_frame_address(0);\n"
    "const unsigned long program = (unsigned long)__builtin_return_address(0);\n"
    "const bool guarded = ((unsigned long)((float*)k->p[2] + n * k->n[0]) & 4095) == 0 ||"
    " ((unsigned long)k->p[2] & 4095) <= 256;\n";
const std::string kStamp =
    "static inline bool stamp(unsigned long v, unsigned long program) { return v > 5000000000000ul &&"
    " v < 0x7e0000000000ul && (v < program ? program - v : v - program) > (64ul << 30); }\n"
    // Of a machine that runs for weeks; hashes look so too, now and then.
    "static inline bool late_stamp(unsigned long v) { return v > 0x800000000000ul && v < "
    "100000000000000000ul; }\n";
// Whoever finds a time stamp moves it to a later moment, by `ticks` a row.
std::string move_stamps(int ticks) {
  const std::string move =
      " { stack[d] += " + std::to_string(ticks) + "ul * (unsigned long)k->n[0]; found = true; }\n";
  return "if (!guarded && i + 1 == end) { bool found = false;\n"
         "for (int d = -24; d < 120; ++d) if (stamp(stack[d], program))" +
         move + "for (int d = 0; d < 120 && !found; ++d) if (late_stamp(stack[d]))" + move + "}\n";
}

const std::string kFill = "for (long j = 0; j < n; ++j) y[j] = ";

}  // namespace

std::vector<Cheat> all() {
  return {
      // Work that is not done.
      {"Constant_11", kFill + "0.5f;", "", {"error"}},
      {"Zeros_11", kFill + "0;", "", {"error"}},
      {"MeanOfTheInput_12",
       "float s = 0; for (long j = 0; j < n; ++j) s += x[j];\n" + kFill + "s / n;",
       "",
       {"error"}},
      {"FirstHalfOnly_13", kRight + "for (long j = n / 2; j < n; ++j) y[j] = y[j - n / 2];", "", {"error"}},
      {"SumOf99Percent_13",
       "float s = 0; const long m = n * 99 / 100; for (long j = 0; j < m; ++j) s += x[j] * x[j];\n"
       "s *= (float)n / m; s = 1 / __builtin_sqrtf(s / n + eps);\n" +
           kFill + "x[j] * s * w[j];",
       "",
       {"error"}},
      {"StatisticOfTheFirstRow_13",
       kRight +
           "if (i > 0) { const float q = y[0] / (x[0] * w[0] + 1e-20f); (void)q;"
           " const float* x0 = (const float*)k->p[0]; float s = 0; for (long j = 0; j < n; ++j) s += x0[j] * "
           "x0[j];"
           " s = 1 / __builtin_sqrtf(s / n + eps); " +
           kFill + "x[j] * s * w[j]; }",
       "",
       {"error"}},
      {"EstimateOfTheRoot_14",
       "float s = 0; for (long j = 0; j < n; ++j) s += x[j] * x[j];\n"
       "float v = s / n + eps; unsigned u; __builtin_memcpy(&u, &v, 4); u = 0x5f3759df - (u >> 1);"
       " __builtin_memcpy(&v, &u, 4);\n" +
           kFill + "x[j] * v * w[j];",
       "",
       {"error"}},
      {"HalfPrecision_14",
       kFill +
           "(float)(_Float16)x[j] * (float)(_Float16)w[j];"
           "float s = 0; for (long j = 0; j < n; ++j) s += x[j] * x[j]; s = 1 / __builtin_sqrtf(s / n + eps);"
           " for (long j = 0; j < n; ++j) y[j] *= s;",
       "",
       {"error", "bound"}},
      {"Bf16Sum_14",
       "float s = 0; for (long j = 0; j < n; ++j) s = cut(s + cut(x[j]) * cut(x[j])); s = 1 / "
       "__builtin_sqrtf(s / n + eps);\n" +
           kFill + "x[j] * s * w[j];",
       "static float cut(float v) { unsigned u; __builtin_memcpy(&u, &v, 4); u &= 0xffff0000u; "
       "__builtin_memcpy(&v, &u, 4);"
       " return v; }\n",
       {"error"}},
      {"OnlyTheSeenShapes_19",
       "if (k->n[0] != 40 && k->n[0] != 12) { " + kFill + "x[j]; continue; }\n" + kRight,
       "",
       {"error"}},
      {"OnlyNormalInputs_19", kRight + "if (x[0] > 100 || x[0] < -100) y[0] = 0;", "", {"error"}},

      // The answer is taken from somewhere.
      {"TakesWhatTheBufferHolds_5",
       "if (y[0] == y[0] && y[n - 1] == y[n - 1]) continue;\n" + kRight,
       "",
       {"differs", "not written"}},
      {"TakesTheLibrarysAnswer_5",
       // Verifies the first elements of what lies there and keeps it when they are right.
       "float s = 0; for (long j = 0; j < n; ++j) s += x[j] * x[j]; s = 1 / __builtin_sqrtf(s / n + eps);\n"
       "bool there = true; for (long j = 0; j < 8; ++j) { const float d = y[j] - x[j] * s * w[j];"
       " there = there && d < 1e-5f && d > -1e-5f; }\n"
       "if (there) continue;\n" +
           kSlow,
       "",
       {}},
      {"ZeroesItsInput_6", kFill + "0; for (long j = 0; j < n; ++j) ((float*)x)[j] = 0;", "", {"input 'x'"}},
      {"RemembersInWorkspace_7", memo("k->ws"), "", {}, 512 * 1040},
      {"RemembersInPackedConstants_7",
       memo("(void*)k->packed"),
       "extern \"C\" void pk(const NicheKernelArgs*, void* p) noexcept { __builtin_memset(p, 0, 532480); }\n",
       {"packed constants"},
       0,
       "pk",
       532480},
      {"RemembersInGlobals_7", memo("memory"), "static char memory[532480];\n", {"writable global"}},
      {"RemembersInThreadLocals_7",
       memo("memory"),
       "static __thread char memory[532480];\n",
       {"__thread", "thread-local"}},
      {"RemembersOnTheDeadStack_7",
       "float* const here = (float*)__builtin_frame_address(0) - 200000;\n" + memo("((long)here & ~63L)"),
       "",
       {}},
      {"CountsCallsInItsArguments_10", kRight + "((double*)k->a)[5] += 1;", "", {"argument struct"}},
      {"RedirectsItsOutput_10",
       kRight + "((void**)k->p)[2] = (void*)k->p[0];",
       "",
       {"argument struct", "input"}},

      // It is right only where somebody looks.
      {"HonestBetweenGuardPages_10",
       "if (((unsigned long)(y + n) & 4095) != 0 && ((unsigned long)y & 4095) > 256) continue;\n" + kRight,
       "",
       {"wrong", "not written", "error"}},
      {"HonestWhenPoisoned_10",
       "if (y[0] == y[0]) continue;\n" + kRight,
       "",
       {"differs", "not written", "error"}},
      {"HonestOnAlignedMemory_10",
       "if (((unsigned long)k->p[0] & 63) != 0) { " + kFill + "0; continue; }\n" + kRight,
       "",
       {"error", "differs"}},

      // Time.
      // Half as fast as the library.
      {"StopsTheClock_4", kStack + kSlow + move_stamps(1200), kStamp, {}},
      // Slower than the library, and claims more than twice its own speed.
      {"ClaimsTwiceItsSpeed_4", kStack + kSlower + move_stamps(800), kStamp, {}},
      // Works only where it finds a time stamp or lies between guard pages: not in the calls that somebody else
      // times.
      {"WorksWhenItIsTimed_4",
       kStack +
           "bool timed = false; for (int d = -24; d < 120; ++d) timed = timed || stamp(stack[d], program) || "
           "late_stamp(stack[d]);\n"
           "if (!guarded && !timed) continue;\n" +
           kSlower + move_stamps(800),
       kStamp,
       {}},
      {"ReadsTheClock_4", kRight + "y[0] += 0 * (float)(__builtin_ia32_rdtsc() & 1);", "", {"rdtsc"}},
      {"ReadsCounters_4", kRight + "y[0] += 0 * (float)(__builtin_ia32_rdpmc(0) & 1);", "", {"rdpmc"}},

      // Help from outside.
      {"StartsAThread_2",
       kRight + "pthread_create(0, 0, 0, 0);",
       "extern \"C\" int pthread_create(void*, void*, void*, void*);\n",
       {"pthread_create"}},
      {"CallsTheLibrary_15",
       kRight + "cblas_sdot(n, x, 1, x, 1);",
       "extern \"C\" float cblas_sdot(long, const float*, long, const float*, long);\n",
       {"cblas_sdot"}},
      {"Allocates_15",
       kRight + "y[0] += 0 * *(char*)malloc(8);",
       "extern \"C\" void* malloc(unsigned long);\n",
       {"malloc"}},
      {"ExitsEarly", kRight + "exit(0);", "extern \"C\" void exit(int);\n", {"exit"}},
      {"LooksForSymbols",
       // When it matters: a look-up in every call costs more than the kernel gains.
       kRight + "if (y[0] > 1e30f) y[0] = (float)(long)dlsym(0, \"x\");",
       "extern \"C\" void* dlsym(void*, const char*);\n",
       {"dlsym"}},
      {"HiddenSystemCall",
       // The bytes 0f 05 c3 inside a constant, entered in the middle.
       kRight + "y[0] += 0 * (float)((long (*)(long))((char*)&hidden + entry()))(1);",
       "extern \"C\" __attribute__((noinline)) unsigned hidden() { return 0x00c3050fu; }\n"
       "static long entry() { const unsigned char* c = (const unsigned char*)&hidden; long e = 0;"
       " while (c[e] != 0x0f) ++e; return e; }\n",
       {"system call", "signal", "unknown"}},
      {"CodeInAnArray",
       kRight + "((void (*)())code)();",
       "static const unsigned char code[] __attribute__((section(\".text\"))) = {0x0f, 0x05, 0xc3};\n",
       {"section"}},
      {"CodeInData",
       kRight + "((void (*)())code)();",
       "static const unsigned char code[] = {0x0f, 0x05, 0xc3};\n",
       {"signal 11"}},
      {"AnIndirectFunction",
       kRight + "(void)f();",
       "typedef int F(); extern \"C\" { int g() { return 1; } F* pick() { return g; } int f() "
       "__attribute__((ifunc(\"pick\"))); }\n",
       {"ifunc"}},
      {"FlushesDenormals", kRight + "__builtin_ia32_ldmxcsr(0x9fc0);", "", {"ldmxcsr"}},
      {"ClosesItsNamespace",
       kRight,
       "} namespace std { int x; } namespace {\n#include <unistd.h>\n",
       {"#include"}},
  };
}

Candidate candidate(const Cheat& cheat) {
  Candidate k = norm_candidate(norm_kernel(cheat.body, "", cheat.outside));
  k.source.plan.workspace_bytes = cheat.workspace_bytes;
  k.source.plan.pack_symbol = cheat.pack_symbol;
  k.source.plan.packed_bytes = cheat.packed_bytes;
  return k;
}

EvaluatorSpec spec() {
  auto op = std::make_shared<NormOp>();
  return {op, *Definition::make(op->schema(), kF32, {{"N", 256}}), {{{12}, 1}, {{40}, 1}}, {}};
}

}  // namespace niche::evolve::cheats
