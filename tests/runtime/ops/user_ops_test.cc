// Operators that users define: a JSON Definition with a TorchScript reference, a shared object, and what each
// gets to read when something is wrong with it.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/ops/axis_expression.h"
#include "runtime/ops/torchscript_op.h"
#include "runtime/ops/user_ops.h"
#include "tests/runtime/ops/op_harness.h"

namespace niche::ops::test {
namespace {

using namespace niche::dispatch;

constexpr const char* kScaledSum = R"json({
  "name": "scaled_sum_n48", "op_type": "scaled_sum",
  "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 48}},
  "inputs": {"x": {"shape": ["M", "N"], "dtype": "float32"}, "weight": {"shape": ["N"], "dtype": "float32"}},
  "outputs": {"y": {"shape": ["M", "N"], "dtype": "float32"}, "total": {"shape": ["M"], "dtype": "float32"}},
  "constraints": ["M >= 2"],
  "reference": "import torch\n@torch.no_grad()\ndef run(x, weight):\n    y = x * weight\n    return y, y.sum(-1)\n",
  "niche": {"constants": ["weight"], "flops": "2 * M * N"}
})json";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(TorchScriptOp, RunsAsReferenceInFp64AndAsFallbackInItsOwnType) {
  auto made = make_torchscript_op(kScaledSum);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const OpSpec& op = *made->op;
  EXPECT_EQ(made->definition->name(), "scaled_sum.f32.N48");
  EXPECT_TRUE(op.schema()->args[1].constant);
  Problem p = make_problem(op, {"scaled_sum", "f32", {{"M", 5}, {"N", 48}}});
  EXPECT_EQ(op.cost(p).flops, 2 * 5 * 48);
  for (int dist = 0; dist < op.distributions(); ++dist) {
    Buffers in(p);
    ASSERT_TRUE(op.make_inputs(p, dist, 1, in.tensors()).ok());
    const Expected expected(op, in);
    const Buffers pointers = run_pointers(op, 0, in), native = run_native(op, 0, in);
    for (int out : {2, 3}) {
      EXPECT_EQ(pointers.bytes(out), native.bytes(out));
      const auto e = expected.error(native, out);
      EXPECT_EQ(e.wrong, 0);
      EXPECT_GT(e.max, out == 3 && dist == 0 ? 0 : -1)
          << "an fp32 sum cannot equal the fp64 reference: was it run in fp64?";
      EXPECT_LE(e.max, e.scale * 48 * 0x1p-24 + 1e-30) << op.distribution_name(dist);
    }
  }
}

TEST(TorchScriptOp, ConstraintsBoundItsProblems) {
  auto made = make_torchscript_op(kScaledSum);
  ASSERT_TRUE(made.ok());
  std::vector<int64_t> axes{1, 48};
  const Status s = made->op->derive_axes(*made->definition, axes);
  EXPECT_EQ(s.code(), Code::kInvalid);
  EXPECT_NE(s.message().find("M >= 2"), std::string::npos) << s.message();
}

TEST(TorchScriptOp, AReferenceThatPinsItsTypeIsFoundAndSaid) {
  auto free = make_torchscript_op(kScaledSum);
  ASSERT_TRUE(free.ok());
  EXPECT_EQ(free->op->tolerance(*free->definition).reason.find("pins"), std::string::npos);
  EXPECT_EQ(free->op->tolerance(*free->definition).floor_abs, 0);

  auto fp32 = make_torchscript_op(replaced(kScaledSum, "y = x * weight", "y = x.float() * weight.float()"));
  ASSERT_TRUE(fp32.ok()) << fp32.status().to_string();
  const Tolerance t = fp32->op->tolerance(*fp32->definition);
  EXPECT_NE(t.reason.find("pins its element type (fp32)"), std::string::npos) << t.reason;
  EXPECT_GT(t.floor_abs, 0);

  // Back in fp64 at the end: the types of the outputs do not show what happened between. 15 is bfloat16:
  // without Python, TorchScript knows element types by number.
  auto hidden = make_torchscript_op(
      replaced(kScaledSum, "y = x * weight", "y = (x.to(15) * weight.to(15)).to(x.dtype)"));
  ASSERT_TRUE(hidden.ok()) << hidden.status().to_string();
  EXPECT_NE(hidden->op->tolerance(*hidden->definition).reason.find("bf16"), std::string::npos);
}

TEST(TorchScriptOp, IntegerInputsNeedARangeAndStayInsideIt) {
  const std::string gather = R"json({
    "name": "gather_rows", "op_type": "gather_rows",
    "axes": {"V": {"type": "const", "value": 9}, "D": {"type": "const", "value": 3}, "I": {"type": "var"}},
    "inputs": {"table": {"shape": ["V", "D"], "dtype": "bfloat16"}, "rows": {"shape": ["I"], "dtype": "int64"}},
    "outputs": {"y": {"shape": ["I", "D"], "dtype": "bfloat16"}},
    "reference": "def run(table, rows):\n    return table.index_select(0, rows)\n",
    "niche": {"range": {"rows": [0, "V"]}, "sorted": ["rows"]}
  })json";
  auto made = make_torchscript_op(gather);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const Problem p = make_problem(*made->op, {"gather_rows", "bf16", {{"V", 9}, {"D", 3}, {"I", 200}}});
  for (int dist = 0; dist < made->op->distributions(); ++dist) {
    Buffers in(p);
    ASSERT_TRUE(made->op->make_inputs(p, dist, 5, in.tensors()).ok());
    const auto rows = in.values<int64_t>(1);
    EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
    EXPECT_GE(rows.front(), 0);
    EXPECT_LT(rows.back(), 9);
    const Expected expected(*made->op, in);
    EXPECT_EQ(expected.error(run_native(*made->op, 0, in), 2).max, 0) << "a gather rounds nothing";
  }
  const Status s = make_torchscript_op(replaced(gather, "\"range\": {\"rows\": [0, \"V\"]}, ", "")).status();
  EXPECT_EQ(s.code(), Code::kInvalid);
  EXPECT_NE(s.message().find("'rows'"), std::string::npos) << s.message();
}

// Live calls run on the caller's own tensors: what is written in silence would be lost to its owner.
TEST(TorchScriptOp, AReferenceThatWritesToAnInputOrIsRandomIsRefused) {
  const std::string honest = R"json({
    "name": "twice", "op_type": "twice", "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}}, "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x * 2\n"
  })json";
  ASSERT_TRUE(make_torchscript_op(honest).ok());
  const Status writes = make_torchscript_op(replaced(honest, "return x * 2", "return x.mul_(2)")).status();
  EXPECT_EQ(writes.code(), Code::kUnsupported);
  EXPECT_NE(writes.message().find("changes its input 'x'"), std::string::npos) << writes.message();
  const Status random = make_torchscript_op(replaced(honest, "x * 2", "x * torch.rand_like(x)")).status();
  EXPECT_EQ(random.code(), Code::kUnsupported);
  EXPECT_NE(random.message().find("other results"), std::string::npos) << random.message();
}

TEST(TorchScriptOp, AMisspeltKeyIsNamed) {
  const Status s = make_torchscript_op(R"json({
    "name": "twice", "op_type": "twice", "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}}, "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x * 2\n", "niche": {"updatess": ["x"]}
  })json")
                       .status();
  EXPECT_EQ(s.code(), Code::kInvalid);
  EXPECT_NE(s.message().find("'updatess'"), std::string::npos) << s.message();
}

TEST(TorchScriptOp, UpdatesInPlaceDerivedAxesAndAttributes) {
  const std::string op_text = R"json({
    "name": "roll", "op_type": "roll",
    "axes": {"B": {"type": "var"}, "L": {"type": "var"}, "P": {"type": "var"}},
    "inputs": {"x": {"shape": ["B", "L"], "dtype": "float32"}, "total": {"shape": ["B"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["B", "P"], "dtype": "float32"}},
    "reference": "def run(x, total, gain: float, pad: int):\n    total.add_(x.sum(-1))\n    return torch.constant_pad_nd(x * gain, [pad, pad])\n",
    "niche": {"derived": ["P"], "derive": {"P": "L + 2 * 3"}, "updates": ["total"], "attrs": {"gain": 2.5, "pad": 3}}
  })json";
  auto made = make_torchscript_op(op_text);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const Problem p = make_problem(*made->op, {"roll", "f32", {{"B", 2}, {"L", 4}}});
  EXPECT_EQ(p.arg_shape(2), (std::vector<int64_t>{2, 10}));
  Buffers in(p);
  in.set(0, std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  in.set(1, std::vector<float>{100, 200});
  const Expected expected(*made->op, in);
  for (const Buffers& got : {run_native(*made->op, 0, in), run_pointers(*made->op, 0, in)}) {
    EXPECT_EQ(got.values<float>(1), (std::vector<float>{110, 226}));
    EXPECT_EQ(got.values<float>(2)[3], 2.5f);
    EXPECT_EQ(expected.error(got, 1).max, 0);
    EXPECT_EQ(expected.error(got, 2).max, 0);
  }
}

// --- a reference in Python

const std::string kPythonReference = R"json({
  "name": "softsign_n16", "op_type": "softsign",
  "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 16}},
  "inputs": {"x": {"shape": ["M", "N"], "dtype": "float32"}, "seen": {"shape": ["M"], "dtype": "float32"}},
  "outputs": {"y": {"shape": ["M", "N"], "dtype": "float32"}},
  "reference": "import torch\nimport torch.nn.functional as F\ndef run(x, seen):\n    seen += 1\n    return [F.softsign(x)][0]\n",
  "niche": {"updates": ["seen"], "fallback": "def run(x, seen):\n    seen.add_(1)\n    return x / (x.abs() + 1)\n"}
})json";

TEST(PythonReferenceOp, WithoutAFallbackItIsRefusedByName) {
  const Status s =
      make_torchscript_op(replaced(kPythonReference, R"("fallback")", R"("flops": 8, "fallback_was")"))
          .status();
  EXPECT_EQ(s.code(), Code::kInvalid) << "unknown keys are errors";
  const size_t at = kPythonReference.find(R"(, "fallback")");
  const Status none = make_torchscript_op(kPythonReference.substr(0, at) + "}}").status();
  EXPECT_EQ(none.code(), Code::kUnsupported);
  for (const char* part : {"softsign_n16", "not TorchScript", "niche.fallback"})
    EXPECT_NE(none.message().find(part), std::string::npos) << none.message();
}

TEST(PythonReferenceOp, AServerServesTheFallbackAndRunsNoPython) {
  auto made = make_torchscript_op(kPythonReference);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const OpSpec& op = *made->op;
  EXPECT_EQ(op.fallback_count(), 1);
  EXPECT_EQ(op.fallback_name(0), "TorchScript fallback");
  EXPECT_NE(op.tolerance(*made->definition).reason.find("only a worker runs"), std::string::npos);
  Buffers in(make_problem(op, {"softsign", "f32", {{"M", 3}, {"N", 16}}}));
  ASSERT_TRUE(
      op.make_inputs(make_problem(op, {"softsign", "f32", {{"M", 3}, {"N", 16}}}), 0, 1, in.tensors()).ok());
  const Expected expected(op, in);  // the fallback in fp64
  EXPECT_LE(expected.error(run_native(op, 0, in), 2).max, 0x1p-23);
}

TEST(PythonReferenceOp, AWorkerWithoutAnInterpreterRefusesItByName) {
  const Status s = make_torchscript_op(kPythonReference, {true, "/no/such/python"}).status();
  EXPECT_EQ(s.code(), Code::kUnsupported);
  for (const char* part : {"softsign_n16", "the reference is Python", "/no/such/python"})
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
}

TEST(TorchScriptOp, AFallbackBesideTheReferenceIsAFormAndMustAgreeWithIt) {
  const std::string two = R"json({
    "name": "twice", "op_type": "twice", "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}}, "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x * 2\n", "niche": {"fallback": "def run(x):\n    return x + x\n"}
  })json";
  auto made = make_torchscript_op(two);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  ASSERT_EQ(made->op->fallback_count(), 2);
  EXPECT_EQ(made->op->fallback_name(0), "TorchScript reference");
  EXPECT_EQ(made->op->fallback_name(1), "TorchScript fallback");
  const Status other = make_torchscript_op(replaced(two, "x + x", "x + x.abs()")).status();
  EXPECT_EQ(other.code(), Code::kUnsupported);
  for (const char* part :
       {"definition 'twice'", "does not compute what the reference computes", "output 'y'"})
    EXPECT_NE(other.message().find(part), std::string::npos) << other.message();
  // Within rounding of the type that one of them pins.
  EXPECT_TRUE(make_torchscript_op(replaced(two, "x + x", "(x.float() * 2.0000001)")).ok());
  EXPECT_FALSE(make_torchscript_op(replaced(two, "x + x", "x * 2.0000001")).ok());
}

// The first interpreter with torch: NICHE_TEST_PYTHON, the repository's virtual environments, PATH. Empty: none, and
// `why_not` says what each of them answered.
std::string interpreter_with_torch(std::string* why_not) {
  std::vector<std::string> candidates;
  if (const char* named = std::getenv("NICHE_TEST_PYTHON")) candidates.emplace_back(named);
  for (const char* folder : {"/.venv-bench", "/.venv"})
    candidates.push_back(std::string(NICHE_SOURCE_DIR) + folder + "/bin/python3");
  candidates.emplace_back("python3");
  for (const std::string& c : candidates) {
    const Status s = make_torchscript_op(kPythonReference, {true, c}).status();
    if (s.ok()) return c;
    *why_not += s.message() + "\n";
  }
  return "";
}

TEST(PythonReferenceOp, AWorkerRunsItInFp64AndRefusesAFallbackThatDisagrees) {
  std::string why_not;
  const std::string python = interpreter_with_torch(&why_not);
  if (python.empty()) GTEST_SKIP() << why_not;
  auto made = make_torchscript_op(kPythonReference, {true, python});
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const OpSpec& op = *made->op;
  EXPECT_NE(op.tolerance(*made->definition).reason.find("the reference is Python, run by Python 3"),
            std::string::npos)
      << op.tolerance(*made->definition).reason;
  const Problem p = make_problem(op, {"softsign", "f32", {{"M", 40}, {"N", 16}}});
  Buffers in(p);
  ASSERT_TRUE(op.make_inputs(p, 0, 1, in.tensors()).ok());
  const Expected expected(op, in);
  const auto e = expected.error(run_native(op, 0, in), 2);
  EXPECT_GT(e.max, 0) << "fp32 cannot equal fp64: was the reference run in fp64?";
  EXPECT_LE(e.max, 0x1p-23);
  EXPECT_LE(expected.error(run_native(op, 0, in), 1).max, 0x1p-22) << "what it updates, by 1";

  const Status other =
      make_torchscript_op(replaced(kPythonReference, "x.abs() + 1", "x.abs() + 1.0001"), {true, python})
          .status();
  EXPECT_EQ(other.code(), Code::kUnsupported);
  EXPECT_NE(other.message().find("does not compute what the reference computes: output 'y'"),
            std::string::npos)
      << other.message();
  const Status update =
      make_torchscript_op(replaced(kPythonReference, "seen.add_(1)", "seen.add_(2)"), {true, python})
          .status();
  EXPECT_NE(update.message().find("output 'seen'"), std::string::npos) << update.message();
  const Status shape =
      make_torchscript_op(replaced(kPythonReference, "[F.softsign(x)][0]", "F.softsign(x)[0]"),
                          {true, python})
          .status();
  EXPECT_NE(shape.message().find("the reference gives output 'y' as [16], declared"), std::string::npos)
      << shape.message();

  auto pinned = make_torchscript_op(replaced(kPythonReference, "F.softsign(x)]", "F.softsign(x.float())]"),
                                    {true, python});
  ASSERT_TRUE(pinned.ok()) << pinned.status().to_string();
  EXPECT_NE(pinned->op->tolerance(*pinned->definition).reason.find("pins its element type (fp32)"),
            std::string::npos);
}

struct Broken {
  const char* from;
  const char* to;
  Code code;
  const char* message;
};

TEST(TorchScriptOp, BrokenDocumentsNameTheirFault) {
  const Broken all[] = {
      {"y = x * weight", "y = numpy.multiply(x, weight)", Code::kUnsupported, "not TorchScript"},
      {"def run(", "def ran(", Code::kUnsupported, "no function 'run'"},
      {"def run(x, weight):\\n    y = x * weight", "def run(x, scale):\\n    y = x * scale",
       Code::kUnsupported, "'scale'"},
      {"return y, y.sum(-1)", "return y", Code::kUnsupported, "1 tensors"},
      {"return y, y.sum(-1)", "return y, y.sum(0)", Code::kUnsupported, "output 'total'"},
      {"return y, y.sum(-1)", "return y, y.argmax(-1)", Code::kUnsupported, "Long"},
      {"return y, y.sum(-1)", "return y, y.reshape(7, -1)", Code::kUnsupported, "failed on a small problem"},
      {"\"reference\": \"", "\"reference_was\": \"", Code::kUnsupported, "no reference"},
      {"M >= 2", "M > 1000", Code::kInvalid, "no small problem"},
      {"M >= 2", "rows[-1] == M", Code::kUnsupported, "'rows'"},
      {"\"flops\": \"2 * M * N\"", "\"flops\": \"2 * Q\"", Code::kInvalid, "'Q'"},
      {"\"constants\": [\"weight\"]", "\"constants\": [\"y\"]", Code::kInvalid, "'y' is no input"},
      {"\"constants\": [\"weight\"]", "\"tolerance\": {\"factor\": 1000, \"reason\": \"r\"}", Code::kInvalid,
       "factor"},
      {"\"op_type\": \"scaled_sum\"", "\"op_type\": \"../up\"", Code::kInvalid, "op_type"},
      {"\"type\": \"var\"", "\"type\": \"foo\"", Code::kInvalid, "axes.M"},
      {"\"axes\"", "\"axis\"", Code::kInvalid, "axes"},
  };
  for (const Broken& b : all) {
    const Status s = make_torchscript_op(replaced(kScaledSum, b.from, b.to)).status();
    EXPECT_EQ(s.code(), b.code) << b.to << ": " << s.to_string();
    EXPECT_NE(s.message().find(b.message), std::string::npos) << b.to << ": " << s.to_string();
    EXPECT_NE(s.message().find("scaled_sum"), std::string::npos) << s.to_string();
  }
  EXPECT_EQ(make_torchscript_op("{").status().code(), Code::kInvalid);
}

TEST(AxisExpression, ComputesAsPythonDoesAndPointsAtFaults) {
  OpSchema schema;
  schema.axes = {{"M", AxisKind::kVar}, {"N", AxisKind::kVar}};
  const int64_t axes[] = {7, -3};
  const auto value = [&](const char* text) {
    auto e = AxisExpression::parse(text, schema);
    EXPECT_TRUE(e.ok()) << e.status().to_string();
    auto v = e->evaluate(axes);
    return v.ok() ? *v : INT64_MIN;
  };
  EXPECT_EQ(value("M + 2 * N"), 1);
  EXPECT_EQ(value("(M + 2) * N - 1"), -28);
  EXPECT_EQ(value("M // N"), -3);
  EXPECT_EQ(value("M % N"), -2);
  EXPECT_EQ(value("M - 1 - 1 == 5"), 1);
  EXPECT_EQ(value("M <= N"), 0);
  EXPECT_EQ(value("M % (N + 3)"), INT64_MIN);
  EXPECT_EQ(value("4611686018427387904 * M"), INT64_MIN);
  for (const char* bad :
       {"", "M +", "M ++ N", "(M", "M)", "M / N", "1.5", "9999999999999999999", "M == N == 1", "L"}) {
    const Status s = AxisExpression::parse(bad, schema).status();
    EXPECT_EQ(s.code(), Code::kInvalid) << bad;
    EXPECT_NE(s.message().find("at character"), std::string::npos) << bad << ": " << s.message();
  }
  EXPECT_FALSE(AxisExpression::parse(std::string(100, '(') + "M" + std::string(100, ')'), schema).ok());
  std::string longest = "M";
  for (int i = 0; i < 100; ++i) longest += "+M";
  EXPECT_FALSE(AxisExpression::parse(longest, schema).ok());
}

class UserOps : public testing::Test {
 protected:
  UserOps() {
    char name[] = "/tmp/niche_user_ops_XXXXXX";
    dir_ = mkdtemp(name);
  }
  ~UserOps() override { std::filesystem::remove_all(dir_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ / name) << text;
    return dir_ / name;
  }
  std::filesystem::path dir_;
};

TEST_F(UserOps, AJsonFileAddsItsOperatorOnce) {
  OpRegistry ops;
  const std::string path = write("scaled_sum.json", kScaledSum);
  ASSERT_TRUE(load_user_ops(path, ops).ok());
  ASSERT_NE(ops.find("scaled_sum"), nullptr);
  auto d = load_definition(path, ops);
  ASSERT_TRUE(d.ok()) << d.status().to_string();
  EXPECT_EQ((*d)->name(), "scaled_sum.f32.N48");
  const Status again = load_user_ops(path, ops);
  EXPECT_EQ(again.code(), Code::kBusy);
  EXPECT_EQ(again.message().find(path), 0u) << again.message();
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(UserOps, TheTutorialShowsTheFilesThatAreTestedHere) {
  const std::string source = NICHE_SOURCE_DIR, tutorial = contents(source + "/docs/operator_tutorial.md");
  for (const char* file : {"squared_relu.json", "capped_swiglu.json", "clamped_relu.cc"})
    EXPECT_NE(tutorial.find(contents(source + "/examples/user_ops/" + file)), std::string::npos) << file;
  OpRegistry ops;
  const Status s = load_user_ops(source + "/examples/user_ops/squared_relu.json", ops);
  ASSERT_TRUE(s.ok()) << s.to_string();
  const OpSpec& op = *ops.find("squared_relu");
  Buffers in(make_problem(op, {"squared_relu", "f32", {{"M", 1}, {"N", 1024}}}));
  std::vector<float> x(1024, -1.f);
  x[3] = 1.5f;
  in.set(0, x);
  const auto y = run_native(op, 0, in).values<float>(1);
  EXPECT_EQ(y[3], 2.25f);
  EXPECT_EQ(y[4], 0.f);
}

TEST_F(UserOps, TheTutorialsReferenceInPythonIsServedByItsFallback) {
  OpRegistry ops;
  const Status s =
      load_user_ops(std::string(NICHE_SOURCE_DIR) + "/examples/user_ops/capped_swiglu.json", ops);
  ASSERT_TRUE(s.ok()) << s.to_string();
  const OpSpec& op = *ops.find("capped_swiglu");
  Buffers in(make_problem(op, {"capped_swiglu", "f32", {{"M", 1}, {"N", 1024}}, {{"limit", 7}}}));
  in.set(0, std::vector<float>(1024, 50.f));
  in.set(1, std::vector<float>(1024, 0.5f));
  EXPECT_EQ(run_native(op, 0, in).values<float>(2)[3], 3.5f);
}

TEST_F(UserOps, ASharedObjectAddsItsOperators) {
  OpRegistry ops;
  const Status s = load_user_ops(NICHE_TEST_OBJECT_GOOD, ops);
  ASSERT_TRUE(s.ok()) << s.to_string();
  const OpSpec* op = ops.find("clamped_relu");
  ASSERT_NE(op, nullptr);
  const Problem p = make_problem(*op, {"clamped_relu", "f32", {{"M", 3}, {"N", 10}}, {{"limit", 0.5}}});
  Buffers in(p);
  ASSERT_TRUE(op->make_inputs(p, 0, 1, in.tensors()).ok());
  const Expected expected(*op, in);
  EXPECT_EQ(expected.error(run_native(*op, 0, in), 1).max, 0);
  EXPECT_EQ(load_user_ops(NICHE_TEST_OBJECT_GOOD, ops).code(), Code::kBusy);
}

TEST_F(UserOps, ABadObjectAddsNothingAndSaysWhy) {
  OpRegistry ops;
  const Status abi = load_user_ops(NICHE_TEST_OBJECT_ABI, ops);
  EXPECT_EQ(abi.code(), Code::kUnsupported);
  EXPECT_NE(abi.message().find("niche-op 0"), std::string::npos) << abi.message();
  const Status throws = load_user_ops(NICHE_TEST_OBJECT_THROWS, ops);
  EXPECT_EQ(throws.code(), Code::kInternal);
  EXPECT_NE(throws.message().find("out of luck"), std::string::npos) << throws.message();
  const Status plain = load_user_ops(NICHE_TEST_OBJECT_PLAIN, ops);
  EXPECT_EQ(plain.code(), Code::kUnsupported);
  EXPECT_NE(plain.message().find("NICHE_REGISTER_OPS"), std::string::npos) << plain.message();
  EXPECT_EQ(load_user_ops(write("garbage.so", "not ELF"), ops).code(), Code::kUnsupported);
  EXPECT_EQ(load_user_ops("/nonexistent/x.so", ops).code(), Code::kIo);
  EXPECT_EQ(load_user_ops("/nonexistent/x.json", ops).code(), Code::kIo);
  EXPECT_EQ(load_user_ops(write("ops.txt", ""), ops).code(), Code::kInvalid);
  EXPECT_EQ(load_user_ops(write("huge.json", std::string((1 << 20) + 1, ' ')), ops).code(), Code::kInvalid);
  EXPECT_TRUE(ops.all().empty()) << "the object that failed half-way left its first operator behind";
}

}  // namespace
}  // namespace niche::ops::test
