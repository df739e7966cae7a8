// The worked examples that the operators' sources publish, edge cases of
// each operator's contract, and the data-dependent sizes of batch_event_truncate.
#include <cmath>
#include <limits>

#include "tests/runtime/ops/op_harness.h"

namespace niche::ops::test {
namespace {

using namespace niche::dispatch;
using I64 = std::vector<int64_t>;

std::vector<int> forms(const OpSpec& op, const Problem& p) {
  std::vector<int> applying;
  for (int f = 0; f < op.fallback_count(); ++f)
    if (op.fallback_applies(f, *p.definition)) applying.push_back(f);
  return applying;
}

// Every form and the reference give `want` for output `arg`, as far as it is written.
template <typename T>
void expect_output(const OpSpec& op, const Buffers& in, int arg, const std::vector<T>& want) {
  const Expected reference(op, in);
  for (int form : forms(op, in.problem())) {
    const Buffers got = run_native(op, form, in);
    std::vector<T> values = got.values<T>(arg);
    values.resize(static_cast<size_t>(op.written_elements(in.problem(), arg, got.tensors())));
    EXPECT_EQ(values, want) << op.fallback_name(form) << ", argument " << arg;
    EXPECT_EQ(reference.error(got, arg).wrong, 0) << op.fallback_name(form);
  }
}

TEST(MapId, WorkedExample) {
  const OpSpec& op = *registry().find("map_id");
  Buffers in(make_problem({"map_id", "i64", {{"V", 5}, {"T", 5}}}));
  in.set(0, I64{100, 300, 500, 200, 999});
  in.set(1, I64{100, 200, 300, 400, 500});
  expect_output(op, in, 2, I64{1, 3, 5, 2, 0});
}

TEST(MapId, EndsOfTheTableAndOfInt64) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  const OpSpec& op = *registry().find("map_id");
  Buffers in(make_problem({"map_id", "i64", {{"V", 7}, {"T", 3}}}));
  in.set(0, I64{kMin, kMin + 1, -1, 0, 1, kMax - 1, kMax});
  in.set(1, I64{kMin, 0, kMax});
  expect_output(op, in, 2, I64{1, 0, 0, 2, 0, 0, 3});
}

TEST(Mbdt, WorkedExample) {
  const OpSpec& op = *registry().find("mbdt");
  Buffers in(make_problem({"mbdt", "f32", {{"F", 2}, {"K", 2}, {"B", 3}}}));
  in.set(0, std::vector<float>{.1f, .4f, .8f, .2f, .5f, .9f});
  in.set(1, std::vector<float>{.3f, .6f, .4f, .7f});
  expect_output(op, in, 2, I64{0, 1, 2, 3, 4, 5});
}

TEST(Mbdt, EqualToABorderIsBelowItAndNaNIsInTheLastBin) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const OpSpec& op = *registry().find("mbdt");
  Buffers in(make_problem({"mbdt", "f32", {{"F", 1}, {"K", 3}, {"B", 8}}}));
  in.set(0, std::vector<float>{.3f, std::nextafter(.3f, 1.f), -kInf, kInf, std::nanf(""), -0.f, 0.f, 2.f});
  in.set(1, std::vector<float>{0.f, .3f, 2.f});
  expect_output(op, in, 2, I64{1, 2, 0, 3, 3, 0, 0, 2});
}

TEST(BatchEventTruncate, WorkedExampleOfTwoFeatures) {
  const OpSpec& op = *registry().find("batch_event_truncate");
  Buffers in(make_problem(
      {"batch_event_truncate", "i64", {{"F", 2}, {"U", 3}, {"E", 16}, {"W", 17}}, {{"max_events", 2}}}));
  in.set(0, I64{3, 4, 1, 3, 4, 1});
  in.set(1, I64{1, 0, 2, 0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  in.set(2, I64{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8});
  expect_output(op, in, 3, I64{2, 2, 1, 2, 2, 1});
  expect_output(op, in, 4, I64{1, 0, 0, 3, 1, 1, 1, 1, 1, 1});
  expect_output(op, in, 5, I64{1, 4, 5, 6, 9, 1, 2, 4, 5, 8});
  expect_output(op, in, 6, I64{5, 5, 5, 5});
}

TEST(BatchEventTruncate, WrittenElementsCountWhatWasKeptAndDistrustImpossibleSizes) {
  const OpSpec& op = *registry().find("batch_event_truncate");
  const Problem p = make_problem({"batch_event_truncate", "i64", {{"F", 2}, {"U", 2}, {"E", 9}, {"W", 12}}});
  Buffers b(p);
  b.set(6, I64{3, 4, 2, 5});
  EXPECT_EQ(op.written_elements(p, 3, b.tensors()), 4);
  EXPECT_EQ(op.written_elements(p, 4, b.tensors()), 5);
  EXPECT_EQ(op.written_elements(p, 5, b.tensors()), 9);
  for (const I64& impossible :
       {I64{-1, 0, 0, 0}, I64{10, 13, 0, 0}, I64{5, 7, 5, 7}, I64{1, 1, INT64_MAX, INT64_MAX}}) {
    b.set(6, impossible);
    EXPECT_EQ(op.written_elements(p, 4, b.tensors()), 9) << "every element is compared";
    EXPECT_EQ(op.written_elements(p, 5, b.tensors()), 12) << "every element is compared";
  }
}

TEST(BatchEventTruncate, RefusesValuesWithoutEvents) {
  const OpSpec& op = *registry().find("batch_event_truncate");
  auto d = *Definition::make(op.schema(), kI64, {{"F", 1}});
  std::vector<int64_t> axes{1, 2, 0, 5, 0};
  EXPECT_EQ(op.derive_axes(*d, axes).code(), Code::kInvalid);
}

TEST(EmbeddingBag, EmptyBagsAreZeroInBothModes) {
  const OpSpec& op = *registry().find("embedding_bag");
  for (double mean : {0.0, 1.0}) {
    Buffers in(
        make_problem({"embedding_bag", "f32", {{"V", 2}, {"D", 2}, {"I", 3}, {"B", 4}}, {{"mean", mean}}}));
    in.set(0, std::vector<float>{1, 2, 4, 8});
    in.set(1, I64{0, 1, 1});
    in.set(2, I64{0, 0, 2, 3});
    const float half = mean != 0 ? 0.5f : 1.f;
    expect_output(op, in, 3, std::vector<float>{0, 0, 5 * half, 10 * half, 4, 8, 0, 0});
  }
}

TEST(EmbeddingBag, NoIndicesAtAll) {
  const OpSpec& op = *registry().find("embedding_bag");
  Buffers in(make_problem({"embedding_bag", "f32", {{"V", 2}, {"D", 2}, {"I", 0}, {"B", 2}}}));
  expect_output(op, in, 3, std::vector<float>{0, 0, 0, 0});
}

TEST(Conv1d, DerivesTheOutputLengthAndRefusesAnEmptyOutput) {
  const OpSpec& op = *registry().find("conv1d");
  const Problem p = make_problem(
      {"conv1d", "f32", {{"B", 2}, {"L", 10}, {"Ci", 3}, {"Co", 4}, {"K", 5}}, {{"padding", 2}}});
  EXPECT_EQ(p.axes[5], 10);
  std::vector<int64_t> axes{2, 0, 3, 4, 5, 0};
  const Status s = op.derive_axes(*p.definition, axes);
  EXPECT_EQ(s.code(), Code::kInvalid);
  EXPECT_NE(s.message().find("'L'"), std::string::npos);
  auto none = *Definition::make(op.schema(), kF32, {{"Ci", 3}, {"Co", 4}, {"K", 5}}, {{"padding", 0}});
  axes = {2, 4, 3, 4, 5, 0};
  EXPECT_NE(op.derive_axes(*none, axes).message().find("no output"), std::string::npos);
}

TEST(Attributes, NonsenseIsRefusedWithWhatIsAllowed) {
  struct Row {
    const char *op, *attr;
    double value;
    const char* allowed;
  };
  for (const Row& r :
       {Row{"rms_norm", "eps", -1, "from 0 to 1"}, Row{"layer_norm", "eps", 2, "from 0 to 1"},
        Row{"conv1d", "padding", 1.5, "a whole number"}, Row{"conv1d", "padding", -1, "from 0 to"},
        Row{"conv1d", "has_bias", 2, "from 0 to 1"}, Row{"linear", "activation", 7, "from 0 to 3"},
        Row{"batch_event_truncate", "max_events", -3, "from 0 to"},
        Row{"embedding_bag", "mean", 0.5, "a whole number"},
        Row{"selective_state_update", "dt_softplus", 3, "from 0 to 1"}}) {
    const auto schema = registry().find(r.op)->schema();
    std::vector<std::pair<std::string, int64_t>> constants;
    for (const AxisSpec& a : schema->axes)
      if (a.kind == AxisKind::kConst) constants.emplace_back(a.name, 8);
    const DLDataType dtype = *parse_dtype(schema->dtypes.front());
    ASSERT_TRUE(Definition::make(schema, dtype, constants).ok()) << r.op;
    const auto refused = Definition::make(schema, dtype, constants, {{r.attr, r.value}});
    EXPECT_EQ(refused.status().code(), Code::kInvalid) << r.op << ' ' << r.attr;
    for (const char* part : {r.op, r.attr, r.allowed})
      EXPECT_NE(refused.status().message().find(part), std::string::npos) << refused.status().message();
  }
}

TEST(FusedAddRmsNorm, BothFormsAgreeAndTheInPlaceOneUpdatesExactlyItsInOutArguments) {
  for (const char* type : {"f32", "bf16"}) {
    const OpSpec& out_of_place = *registry().find("fused_add_rms_norm");
    const OpSpec& in_place = *registry().find("fused_add_rms_norm_inplace");
    Buffers a(make_problem({"fused_add_rms_norm", type, {{"M", 3}, {"N", 130}}}));
    ASSERT_TRUE(out_of_place.make_inputs(a.problem(), 0, 3, a.tensors()).ok());
    Buffers b(make_problem({"fused_add_rms_norm_inplace", type, {{"M", 3}, {"N", 130}}}));
    b.bytes(0) = a.bytes(2);
    b.bytes(1) = a.bytes(0);
    b.bytes(2) = a.bytes(1);
    for (int form = 0; form < in_place.fallback_count(); ++form) {
      const Buffers want = run_pointers(out_of_place, form, a);
      const Buffers got = run_pointers(in_place, form, b);
      EXPECT_EQ(got.bytes(0), b.bytes(0)) << "the weight was written";
      EXPECT_EQ(got.bytes(1), want.bytes(3)) << in_place.fallback_name(form);
      EXPECT_EQ(got.bytes(2), want.bytes(4)) << in_place.fallback_name(form);
    }
  }
}

TEST(SelectiveStateUpdate, ZeroStepWithoutInputLeavesTheState) {
  const OpSpec& op = *registry().find("selective_state_update");
  Buffers in(make_problem({"selective_state_update",
                           "f32",
                           {{"B", 1}, {"D", 2}, {"S", 2}},
                           {{"has_D", 0}, {"has_z", 0}, {"has_dt_bias", 0}, {"dt_softplus", 0}}}));
  in.set(0, std::vector<float>{3, 5});  // x
  in.set(1, std::vector<float>{0, 0});  // dt: no time passes
  in.set(2, std::vector<float>{-1, -2, -3, -4});
  in.set(3, std::vector<float>{1, 1});   // B
  in.set(4, std::vector<float>{1, 10});  // C
  in.set(8, std::vector<float>{1, 2, 3, 4});
  for (int form = 0; form < op.fallback_count(); ++form) {
    const Buffers got = run_pointers(op, form, in);
    EXPECT_EQ(got.values<float>(8), (std::vector<float>{1, 2, 3, 4})) << op.fallback_name(form);
    EXPECT_EQ(got.values<float>(9), (std::vector<float>{21, 43})) << op.fallback_name(form);
  }
}

TEST(AtenOp, NamesTheAxisThatIsEmptyAndTheDistributionThatIsNot) {
  const OpSpec& op = *registry().find("rms_norm");
  const Problem p = make_problem({"rms_norm", "f32", {{"M", 1}, {"N", 4}}});
  std::vector<int64_t> axes{0, 4};
  EXPECT_NE(op.derive_axes(*p.definition, axes).message().find("'M'"), std::string::npos);
  Buffers b(p);
  EXPECT_EQ(op.make_inputs(p, 99, 1, b.tensors()).code(), Code::kInvalid);
}

}  // namespace
}  // namespace niche::ops::test
