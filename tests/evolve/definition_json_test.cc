#include "evolve/definition_json.h"

#include <gtest/gtest.h>

#include "tests/evolve/toy_op.h"

namespace niche::evolve {
namespace {

using dispatch::ArgRole;
using dispatch::AxisKind;
using dispatch::Code;
using dispatch::Definition;
using dispatch::kF32;
using dispatch::OpRegistry;

OpRegistry registry() {
  OpRegistry ops;
  EXPECT_TRUE(ops.add(std::make_shared<testing_ops::ToyOp>()).ok());
  return ops;
}
std::shared_ptr<const Definition> toy(const OpRegistry& ops, double has_b = 1) {
  return *Definition::make(ops.find("toy_affine_relu")->schema(), kF32, {{"N", 64}}, {{"has_b", has_b}});
}
// `text` with the first `from` replaced.
std::string edit(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(DefinitionJson, RoundTripGivesAnEqualDefinition) {
  const OpRegistry ops = registry();
  for (double has_b : {0.0, 1.0}) {
    const auto d = toy(ops, has_b);
    const auto back = definition_from_json(definition_to_json(*d, "def run(x, w): ...", {"N % 8 == 0"}), ops);
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_EQ((*back)->name(), d->name());
    EXPECT_EQ((*back)->hash(), d->hash());
  }
}

TEST(DefinitionJson, WritesTheTraceSchemasFields) {
  const OpRegistry ops = registry();
  const auto doc = parse_definition_document(definition_to_json(*toy(ops), "src", {"c1", "c2"}));
  ASSERT_TRUE(doc.ok());
  EXPECT_EQ(doc->op_type, "toy_affine_relu");
  EXPECT_EQ(doc->reference, "src");
  EXPECT_EQ(doc->constraints, (std::vector<std::string>{"c1", "c2"}));
  ASSERT_EQ(doc->axes.size(), 2u);
  EXPECT_FALSE(doc->axes[0].value);
  EXPECT_EQ(doc->axes[1].value, 64);
  EXPECT_EQ(doc->inputs.size(), 3u);
  EXPECT_TRUE(doc->inputs[2].optional);
  EXPECT_EQ(doc->outputs[0].shape, (std::vector<std::string>{"M", "N"}));
}

// A document by hand, without niche's own key, as FlashInfer Trace writes it.
TEST(DefinitionJson, ReadsADocumentWithoutNichesKey) {
  const OpRegistry ops = registry();
  const auto d = definition_from_json(R"({
    "name": "toy_h64", "op_type": "toy_affine_relu",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 64}},
    "inputs": {"x": {"shape": ["M", "N"], "dtype": "float32"}, "w": {"shape": ["N"], "dtype": "float32"},
               "b": {"shape": ["N"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M", "N"], "dtype": "float32"}}})",
                                      ops);
  ASSERT_TRUE(d.ok()) << d.status().to_string();
  EXPECT_EQ((*d)->name(), toy(ops)->name());
}

TEST(DefinitionJson, EachDefectIsNamed) {
  const OpRegistry ops = registry();
  const std::string good = definition_to_json(*toy(ops));
  const struct {
    std::string text, says;
    Code code;
  } cases[] = {
      {"{", "not JSON", Code::kInvalid},
      {"[1]", "not a JSON object", Code::kInvalid},
      {edit(good, "\"toy_affine_relu\"", "\"nothing\""), "no operator 'nothing'", Code::kNotFound},
      {edit(good, "\"op_type\"", "\"op_typo\""), "op_type: missing", Code::kInvalid},
      {edit(good, "\"value\":64", "\"value\":0"), "axes.N: must be positive", Code::kInvalid},
      {edit(good, "\"value\":64", "\"value\":\"64\""), "axes.N: constant without an integer", Code::kInvalid},
      {edit(good, "\"value\":64", "\"value\":18446744073709551615"), "axes.N", Code::kInvalid},
      {edit(good, "\"var\"", "\"vary\""), "axes.M: type 'vary'", Code::kInvalid},
      {edit(good, "{\"type\":\"var\"}", "{\"type\":\"const\",\"value\":3}"), "axis 'M' is variable",
       Code::kInvalid},
      {edit(good, "\"M\",\"N\"", "\"M\",\"Q\""), "inputs.x: shape names", Code::kInvalid},
      {edit(good, "\"M\",\"N\"", "\"N\",\"M\""), "'x' has another shape", Code::kInvalid},
      {edit(good, "float32", "float31"), "unknown element type 'float31'", Code::kInvalid},
      {edit(good, "float32", "bfloat16"), "'x' is f32, the document says bf16", Code::kInvalid},
      {edit(good, "\"has_b\":", "\"has_c\":"), "unknown attribute 'has_c'", Code::kInvalid},
      {edit(good, "\"w\":", "\"v\":"), "no argument 'v'", Code::kInvalid},
      {edit(good, "\"constraints\":[]", "\"constraints\":[3]"), "constraints: holds 3", Code::kInvalid},
      {edit(good, "\"dtype\":\"f32\"", "\"dtype\":\"f64\""), "element type f64", Code::kUnsupported},
      {std::string(2 << 20, ' '), "at most 1 MiB", Code::kInvalid},
  };
  ASSERT_TRUE(definition_from_json(good, ops).ok());
  for (const auto& c : cases) {
    const auto d = definition_from_json(c.text, ops);
    ASSERT_FALSE(d.ok()) << c.says;
    EXPECT_EQ(d.status().code(), c.code) << d.status().to_string();
    EXPECT_NE(d.status().message().find(c.says), std::string::npos) << d.status().to_string();
  }
}

TEST(DefinitionJson, ADocumentAloneGivesASchema) {
  const auto doc = parse_definition_document(R"({
    "name": "mine", "op_type": "user_decay",
    "axes": {"B": {"type": "var"}, "D": {"type": "const", "value": 16}, "E": {"type": "var"}},
    "inputs": {"x": {"shape": ["B", "D"], "dtype": "bfloat16"}, "ids": {"shape": ["B"], "dtype": "int64"},
               "s": {"shape": ["B", "D"], "dtype": "bfloat16"}},
    "outputs": {"y": {"shape": ["B", "E"], "dtype": "float32"}},
    "niche": {"derived": ["E"], "updates": ["s"], "attrs": {"rate": 0.5}}})");
  ASSERT_TRUE(doc.ok()) << doc.status().to_string();
  const auto schema = schema_from_document(*doc);
  ASSERT_TRUE(schema.ok()) << schema.status().to_string();
  EXPECT_EQ(schema->dtypes, std::vector<std::string>{"bf16"});
  EXPECT_EQ(schema->axes[2].kind, AxisKind::kDerived);
  EXPECT_EQ(schema->args[0].dtype, "T");
  EXPECT_EQ(schema->args[1].dtype, "i64");
  EXPECT_EQ(schema->args[2].role, ArgRole::kInOut);
  EXPECT_EQ(schema->args[3].dtype, "f32");
  EXPECT_EQ(schema->attrs[0].default_value, 0.5);
}

}  // namespace
}  // namespace niche::evolve
