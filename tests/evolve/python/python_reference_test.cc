// References run by a real interpreter with a real torch. Which one: NICHE_TEST_PYTHON, else the first of the
// repository's virtual environments and PATH that can import torch; none: skipped, with what each of them said.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

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
  static Status run_source(const std::string& source) {
    PythonReference reference = scaled_reference(interpreter().program, {}, source);
    ScaledCall call(3);
    return reference.run(call.problem, call.args, call.out);
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

TEST_F(RealPython, FaultsOfTheReferenceAreNamedWithTheirLine) {
  const struct {
    const char *source, *says;
    Code code;
  } all[] = {
      {"def run(x, w, total):\n    return x[7]", "IndexError", Code::kInternal},
      {"def run(x, w, total):\n    return x[7]", "line 2", Code::kInternal},
      {"def run(x, w, total)\n    return x", "SyntaxError", Code::kUnsupported},
      {"import numpy_of_the_moon\ndef run(x, w, total):\n    return x", "numpy_of_the_moon",
       Code::kUnsupported},
      {"def ran(x):\n    return x", "no function 'run'", Code::kUnsupported},
      {"def run(x, w, *rest):\n    return x", "'rest' in another way than by name", Code::kUnsupported},
      {"def run(x, w, total):\n    return x, 7", "returned a int where a tensor belongs", Code::kInternal},
      {"def run(x, w, total):\n    return x * w", "returned 1 tensors", Code::kUnsupported},
      {"def run(x, w, total):\n    return x * w, total", "output 'count' as floating", Code::kUnsupported},
      {"def run(x, w, total):\n    return {'y': x}", "returned no 'count'", Code::kInternal},
      {"def run(x, w, total):\n    raise SystemExit(1)", "SystemExit", Code::kInternal},
      {"import os\ndef run(x, w, total):\n    os.abort()", "signal 6", Code::kIo},
      {"import os\ndef run(x, w, total):\n    os.write(3, b'junkjunkjunk'); return x", "claims",
       Code::kCorrupt},
      {"def run(x, w, total):\n    open('/tmp/niche_python_probe', 'w')", "PermissionError", Code::kInternal},
  };
  for (const auto& f : all) {
    const Status s = run_source(f.source);
    EXPECT_EQ(s.code(), f.code) << f.source << ": " << s.to_string();
    EXPECT_NE(s.message().find(f.says), std::string::npos) << f.source << ": " << s.to_string();
    EXPECT_EQ(s.message().find("definition 'scaled_n4': "), 0u) << s.to_string();
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
