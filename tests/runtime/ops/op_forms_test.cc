// Every operator, every library form, every distribution, odd sizes: the forms agree with the fp64 reference,
// leave their inputs alone, and wrong answers are told apart from right ones.
#include <cstring>

#include "runtime/ops/inputs.h"
#include "tests/runtime/ops/op_cases.h"
#include "tests/runtime/ops/op_harness.h"

namespace niche::ops::test {
namespace {

using namespace niche::dispatch;

class Forms : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    op_ = registry().find(GetParam().op);
    ASSERT_NE(op_, nullptr);
    problem_ = make_problem(GetParam());
  }
  Buffers inputs(int distribution, uint64_t seed = 7) const {
    Buffers b(problem_);
    const Status s = op_->make_inputs(problem_, distribution, seed, b.tensors());
    EXPECT_TRUE(s.ok()) << s.to_string();
    return b;
  }
  const ArgSpec& arg(int i) const { return problem_.definition->schema().args[static_cast<size_t>(i)]; }
  DLDataType arg_dtype(int i) const { return problem_.definition->arg_dtype(i); }
  std::vector<int> forms() const {
    std::vector<int> applying;
    for (int f = 0; f < op_->fallback_count(); ++f)
      if (op_->fallback_applies(f, *problem_.definition)) applying.push_back(f);
    return applying;
  }
  const OpSpec* op_ = nullptr;
  Problem problem_;
};

TEST_P(Forms, AgreeWithTheReferenceOnEveryDistribution) {
  const Tolerance tolerance = op_->tolerance(*problem_.definition);
  EXPECT_FALSE(tolerance.reason.empty());
  for (int dist = 0; dist < op_->distributions(); ++dist) {
    const Buffers in = inputs(dist);
    const Expected expected(*op_, in);
    for (int out : expected.outputs()) {
      double library = -1;
      for (int form : forms()) {
        const Buffers got = run_pointers(*op_, form, in);
        const auto e = expected.error(got, out);
        if (library < 0) library = e.max;
        const std::string where = std::string(op_->distribution_name(dist)) + ", form '" +
                                  std::string(op_->fallback_name(form)) + "', output '" + arg(out).name + "'";
        EXPECT_EQ(e.wrong, 0) << where;
        EXPECT_LE(e.max, bound(tolerance, library, e.scale, arg_dtype(out)))
            << where << ", scale " << e.scale;
        // The library itself is right: within 2^10 roundings of the largest value, or the reference is wrong.
        EXPECT_LE(e.max, (e.scale * 1024 + 1e-30) * rounding(arg_dtype(out)) + smallest(arg_dtype(out)))
            << where;
      }
    }
  }
}

TEST_P(Forms, GiveTheSameBitsOnLiveTensorsAndOnPointers) {
  for (int dist : {0, 1}) {
    const Buffers in = inputs(dist);
    const Expected expected(*op_, in);
    for (int form : forms()) {
      const Buffers a = run_pointers(*op_, form, in, 0xff);
      const Buffers b = run_native(*op_, form, in);
      const Buffers c = run_pointers(*op_, form, in, 0x00);  // other poison: what is not written shows
      for (int out : expected.outputs()) {
        const auto bytes = static_cast<size_t>(op_->written_elements(problem_, out, a.tensors())) *
                           dtype_bytes(arg_dtype(out));
        EXPECT_EQ(std::memcmp(a.bytes(out).data(), b.bytes(out).data(), bytes), 0)
            << op_->fallback_name(form);
        EXPECT_EQ(std::memcmp(a.bytes(out).data(), c.bytes(out).data(), bytes), 0)
            << op_->fallback_name(form);
      }
    }
  }
}

TEST_P(Forms, ChangeNothingButOutputs) {
  const Buffers in = inputs(0);
  for (int form : forms()) {
    const Buffers got = run_pointers(*op_, form, in);
    const Buffers native = run_native(*op_, form, in);
    for (size_t i = 0; i < in.tensors().size(); ++i) {
      const int a = static_cast<int>(i);
      if (arg(a).role == ArgRole::kIn) {
        EXPECT_EQ(in.bytes(a), got.bytes(a)) << op_->fallback_name(form) << " changed " << arg(a).name;
        EXPECT_EQ(in.bytes(a), native.bytes(a)) << op_->fallback_name(form) << " changed " << arg(a).name;
      } else if (arg(a).role == ArgRole::kInOut) {
        EXPECT_NE(in.bytes(a), got.bytes(a)) << op_->fallback_name(form) << " left " << arg(a).name;
      }
    }
  }
}

// A kernel that writes zeros, copies an input, or does half of the work must not pass on what the model
// usually sees.
TEST_P(Forms, NullCandidatesFailTheTolerance) {
  const Tolerance tolerance = op_->tolerance(*problem_.definition);
  const Buffers in = inputs(0);
  const Expected expected(*op_, in);
  const Buffers right = run_pointers(*op_, 0, in);
  const int out = expected.outputs().front();
  if (problem_.arg_elements(out) < 4) GTEST_SKIP() << "too small to do half of";
  const double library = expected.error(right, out).max;
  const auto fails = [&](const char* what, auto&& spoil) {
    Buffers b(right);
    spoil(b.bytes(out));
    if (b.bytes(out) == right.bytes(out)) return;  // right here: no event, nothing cut, nothing kept
    const auto e = expected.error(b, out);
    EXPECT_TRUE(e.wrong || e.max > bound(tolerance, library, e.scale, arg_dtype(out))) << what << " passes";
  };
  fails("zeros", [](std::vector<char>& y) { std::fill(y.begin(), y.end(), 0); });
  fails("half of the work",
        [](std::vector<char>& y) { std::fill(y.begin() + static_cast<long>(y.size() / 2), y.end(), 0); });
  fails("a copy of the input", [&](std::vector<char>& y) {
    const auto& x = in.bytes(arg(0).constant ? 1 : 0);
    for (size_t i = 0; i < y.size(); ++i) y[i] = x[i % x.size()];
  });
}

// Rounds fp32 values to `bits` explicit mantissa bits: 10 is tf32, 7 is bf16.
void downgrade(std::vector<char>& bytes, int bits) {
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    uint32_t u;
    std::memcpy(&u, &bytes[i], 4);
    const int drop = 23 - bits;
    u = (u + (1u << (drop - 1))) >> drop << drop;
    std::memcpy(&bytes[i], &u, 4);
  }
}

TEST_P(Forms, DowngradeFailsEveryFp32Tolerance) {
  const Tolerance tolerance = op_->tolerance(*problem_.definition);
  const Buffers in = inputs(0);
  const Expected expected(*op_, in);
  const int out = expected.outputs().front();
  if (GetParam().dtype != "f32" || tolerance.exact || problem_.arg_elements(out) < 64)
    GTEST_SKIP() << "not an fp32 operator, or too small to tell";
  const double library = expected.error(run_pointers(*op_, 0, in), out).max;
  for (int bits : {10, 7}) {
    Buffers rounded(in);
    for (size_t i = 0; i < in.tensors().size(); ++i)
      if (same_dtype(in.tensors()[i].dtype, kF32)) downgrade(rounded.bytes(static_cast<int>(i)), bits);
    const auto e = expected.error(run_pointers(*op_, 0, rounded), out);
    EXPECT_GT(e.max, bound(tolerance, library, e.scale, kF32)) << bits << " mantissa bits pass";
  }
}

TEST_P(Forms, EqualSeedsGiveEqualInputsAndOthersDoNot) {
  for (int dist = 0; dist < op_->distributions(); ++dist) {
    const Buffers a = inputs(dist, 1), b = inputs(dist, 1), c = inputs(dist, 2);
    bool differs = false;
    bool empty = false;  // a problem without values leaves nothing to draw
    size_t bytes = 0;
    for (size_t i = 0; i < a.tensors().size(); ++i) {
      if (arg(static_cast<int>(i)).role == ArgRole::kOut) continue;
      EXPECT_EQ(a.bytes(static_cast<int>(i)), b.bytes(static_cast<int>(i)));
      differs |= a.bytes(static_cast<int>(i)) != c.bytes(static_cast<int>(i));
      bytes += a.bytes(static_cast<int>(i)).size();
      empty |= problem_.definition->has_arg(static_cast<int>(i)) && a.bytes(static_cast<int>(i)).empty();
    }
    EXPECT_TRUE(differs || bytes < 64 || empty) << op_->distribution_name(dist);
  }
}

TEST_P(Forms, CostIsPositiveAndAtLeastTheOutputs) {
  const Cost c = op_->cost(problem_);
  double outputs = 0;
  for (size_t i = 0; i < problem_.definition->schema().args.size(); ++i)
    if (arg(static_cast<int>(i)).role == ArgRole::kOut)
      outputs += static_cast<double>(problem_.arg_bytes(static_cast<int>(i)));
  EXPECT_GT(c.flops, 0);
  EXPECT_GE(c.bytes, outputs);
}

INSTANTIATE_TEST_SUITE_P(Ops, Forms, testing::ValuesIn(all_cases()), [](const auto& info) {
  std::string name = to_string(info.param);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

TEST(Registry, HasEveryOperatorOfTheSchemasAndEachIsCovered) {
  for (const auto& op : registry().all()) {
    EXPECT_TRUE(op->schema()->validate().ok());
    bool covered = false;
    for (const Case& c : all_cases()) covered |= c.op == op->schema()->op;
    EXPECT_TRUE(covered) << op->schema()->op;
  }
}

}  // namespace
}  // namespace niche::ops::test
