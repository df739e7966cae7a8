// References run by a real interpreter with a real torch. Which one: NICHE_TEST_PYTHON, else the first of the
// repository's virtual environments and PATH that can import torch; none: skipped, with what each of them said.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "tests/evolve/python/scaled_problem.h"

namespace niche::evolve::python::test {
namespace {

struct Found {
  std::string program, why_not;
};

const Found& interpreter() {
  static const Found found = [] {
    Found f;
    std::vector<std::string> candidates;
    if (const char* named = std::getenv("NICHE_TEST_PYTHON")) candidates.emplace_back(named);
    for (const char* folder : {"/.venv-bench", "/.venv"})
      candidates.push_back(std::string(NICHE_SOURCE_DIR) + folder + "/bin/python3");
    candidates.emplace_back("python3");
    for (const std::string& c : candidates) {
      const Status s = scaled_reference(c).start();
      if (s.ok()) return Found{c, ""};
      f.why_not += s.message() + "\n";
    }
    return f;
  }();
  return found;
}

class RealPython : public testing::Test {
 protected:
  void SetUp() override {
    if (interpreter().program.empty()) GTEST_SKIP() << interpreter().why_not;
  }
};

TEST_F(RealPython, ComputesInFp64AndUpdatesInPlace) {
  PythonReference reference = scaled_reference(interpreter().program);
  for (const int64_t rows : {3, 1, 2000, 2}) {  // the shared memory grows and is used again
    ScaledCall call(rows);
    const Status s = reference.run(call.problem, call.args, call.out);
    ASSERT_TRUE(s.ok()) << s.to_string();
    for (int64_t i = 0; i < rows; ++i) {
      double sum = 100;
      int64_t positive = 3;
      for (int64_t j = 0; j < 4; ++j) {
        const auto k = static_cast<size_t>(4 * i + j);
        const double x = call.x[k];
        sum += x, positive += x > 0;
        EXPECT_EQ(call.y[k], x * static_cast<double>(call.w[static_cast<size_t>(j)]) * 2.5) << i << " " << j;
      }
      EXPECT_EQ(call.totals[static_cast<size_t>(i)], sum);
      EXPECT_EQ(call.count[static_cast<size_t>(i)], positive);
      EXPECT_EQ(call.total[static_cast<size_t>(i)], 100.f) << "inputs are unchanged";
    }
  }
  EXPECT_EQ(reference.version().find("Python 3."), 0u) << reference.version();
}

struct Fault {
  const char* what;
  Code code;
  std::vector<const char*> says;
};

void expect_fault(const Status& s, const Fault& f) {
  EXPECT_EQ(s.code(), f.code) << f.what << ": " << s.to_string();
  for (const char* words : f.says)
    EXPECT_NE(s.message().find(words), std::string::npos) << f.what << ": " << s.to_string();
  EXPECT_EQ(s.message().find("definition 'scaled_n4': "), 0u) << s.to_string();
}

TEST_F(RealPython, ASourceThatDoesNotLoadIsRefused) {
  const Fault all[] = {
      {"def run(x, w, total)\n    return x", Code::kUnsupported, {"SyntaxError", "line 1"}},
      {"import numpy_of_the_moon\ndef run(x, w, total):\n    return x",
       Code::kUnsupported,
       {"numpy_of_the_moon", "line 1"}},
      {"def ran(x):\n    return x", Code::kUnsupported, {"no function 'run'"}},
      {"def run(x, w, *rest):\n    return x", Code::kUnsupported, {"'rest' in another way than by name"}},
  };
  for (const Fault& f : all) expect_fault(scaled_reference(interpreter().program, {}, f.what).start(), f);
}

// The attribute `shift` picks the fault: an import of torch takes seconds, and one interpreter stands most of them.
TEST_F(RealPython, FaultsOfACallAreNamedWithTheirLine) {
  const char* source = R"(import os
def run(x, w, total, shift: int):
    if shift == 0: return x[7]
    if shift == 1: return x, 7
    if shift == 2: return x * w
    if shift == 3: return x * w, total
    if shift == 4: return {'y': x}
    if shift == 5: raise SystemExit(1)
    if shift == 6: open('/tmp/niche_python_probe', 'w')
    if shift == 7: return x * w, (x > 0).sum(-1)
    if shift == 8: os.write(3, b'junkjunkjunk')
    if shift == 9: os.abort()
    return x, x
)";
  const Fault all[] = {
      {"an index out of range", Code::kInternal, {"IndexError", "line 3", "at M=3"}},
      {"no tensor", Code::kInternal, {"returned a int where a tensor belongs"}},
      {"too few", Code::kUnsupported, {"returned 1 tensors, the Definition has 2 outputs"}},
      {"another kind", Code::kUnsupported, {"output 'count' as floating, declared integers"}},
      {"a name that is missing", Code::kInternal, {"returned no 'count'"}},
      {"the end", Code::kInternal, {"SystemExit", "line 8"}},
      {"a file written", Code::kInternal, {"PermissionError", "line 9"}},
      {"nothing", Code::kOk, {}},
      {"nonsense on the channel", Code::kCorrupt, {"claims"}},
      {"a crash", Code::kIo, {"ended by signal 6"}},
  };
  PythonReference reference = scaled_reference(interpreter().program, {}, source);
  for (int i = 0; i < 10; ++i) {
    ScaledCall call(3, 4, i);
    const Status s = reference.run(call.problem, call.args, call.out);
    if (all[i].code == Code::kOk)
      EXPECT_TRUE(s.ok()) << "what a call raised harms no later one: " << s.to_string();
    else
      expect_fault(s, all[i]);
    if (all[i].code == Code::kCorrupt) reference.stop();  // the next question starts another
  }
}

// One interpreter a process: a forked child neither talks to its parent's nor ends it.
TEST_F(RealPython, AForkedChildStartsItsOwn) {
  PythonReference reference = scaled_reference(interpreter().program);
  ScaledCall call(2);
  ASSERT_TRUE(reference.run(call.problem, call.args, call.out).ok());
  const pid_t child = fork();
  if (child == 0) {
    ScaledCall mine(5);
    _exit(reference.run(mine.problem, mine.args, mine.out).ok() && mine.totals[0] != 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ScaledCall again(4);
  EXPECT_TRUE(reference.run(again.problem, again.args, again.out).ok());
}

TEST_F(RealPython, StopsAndStartsAgain) {
  PythonReference reference = scaled_reference(interpreter().program);
  ASSERT_TRUE(reference.start().ok());
  reference.stop();
  ScaledCall call(2);
  EXPECT_TRUE(reference.run(call.problem, call.args, call.out).ok());
}

}  // namespace
}  // namespace niche::evolve::python::test
