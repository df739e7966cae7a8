#include "runtime/ops/cuda/schemas.h"

namespace niche::ops_cuda {
namespace {

using namespace niche::dispatch;
using enum ArgRole;
using enum AxisKind;

const std::vector<std::string> kFloats = {"f32", "f16", "bf16"};
const std::vector<AxisSpec> kRows = {{"M", kVar}, {"N", kConst}};

std::vector<OpSchema> all() {
  return {
      {"rms_norm",
       kRows,
       {{"x", kIn, "T", {0, 1}}, {"weight", kIn, "T", {1}, false, true}, {"y", kOut, "T", {0, 1}}},
       {{"eps", 1e-6}},
       kFloats},
      {"fused_add_rms_norm",
       kRows,
       {{"x", kIn, "T", {0, 1}},
        {"residual", kIn, "T", {0, 1}},
        {"weight", kIn, "T", {1}, false, true},
        {"y", kOut, "T", {0, 1}},
        {"residual_out", kOut, "T", {0, 1}}},
       {{"eps", 1e-6}},
       kFloats},
      {"fused_add_rms_norm_inplace",
       kRows,
       {{"weight", kIn, "T", {1}, false, true},
        {"x", kInOut, "T", {0, 1}},
        {"residual", kInOut, "T", {0, 1}}},
       {{"eps", 1e-6}},
       kFloats},
      {"layer_norm",
       kRows,
       {{"x", kIn, "T", {0, 1}},
        {"weight", kIn, "T", {1}, false, true},
        {"bias", kIn, "T", {1}, false, true},
        {"y", kOut, "T", {0, 1}}},
       {{"eps", 1e-5}},
       kFloats},
      {"softmax", kRows, {{"x", kIn, "T", {0, 1}}, {"y", kOut, "T", {0, 1}}}, {}, kFloats},
      {"silu_mul",
       kRows,
       {{"gate", kIn, "T", {0, 1}}, {"up", kIn, "T", {0, 1}}, {"y", kOut, "T", {0, 1}}},
       {},
       kFloats},
      {"gelu_mul",
       kRows,
       {{"gate", kIn, "T", {0, 1}}, {"up", kIn, "T", {0, 1}}, {"y", kOut, "T", {0, 1}}},
       {{"tanh", 0}},
       kFloats},
      {"rope",
       {{"T", kVar}, {"H", kConst}, {"D", kConst}, {"P", kConst}},
       {{"x", kIn, "T", {0, 1, 2}},
        {"cos_sin", kIn, "T", {3, 2}, false, true},
        {"positions", kIn, "i64", {0}},
        {"y", kOut, "T", {0, 1, 2}}},
       {{"interleaved", 0}},
       kFloats},
      {"linear",
       {{"M", kVar}, {"N", kConst}, {"K", kConst}},
       {{"x", kIn, "T", {0, 2}},
        {"weight", kIn, "T", {1, 2}, false, true},
        {"bias", kIn, "T", {1}, true, true},
        {"y", kOut, "T", {0, 1}}},
       {{"has_bias", 1}, {"activation", 0}},
       kFloats},
      {"sdpa_decode",
       {{"B", kVar}, {"S", kVar}, {"Hq", kConst}, {"Hk", kConst}, {"D", kConst}},
       {{"q", kIn, "T", {0, 2, 4}},
        {"k", kIn, "T", {0, 3, 1, 4}},
        {"v", kIn, "T", {0, 3, 1, 4}},
        {"y", kOut, "T", {0, 2, 4}}},
       {{"scale", 0}},
       kFloats},
      {"embedding_bag",
       {{"V", kConst}, {"D", kConst}, {"I", kVar}, {"B", kVar}},
       {{"weight", kIn, "T", {0, 1}, false, true},
        {"indices", kIn, "i64", {2}},
        {"offsets", kIn, "i64", {3}},
        {"y", kOut, "T", {3, 1}}},
       {{"mean", 0}},
       kFloats},
      {"ikbo_linear_compression",
       {{"M", kConst}, {"N", kConst}, {"Kc", kConst}, {"Ku", kConst}, {"B", kVar}, {"U", kVar}},
       {{"Wc", kIn, "T", {0, 2}, false, true},
        {"Wu", kIn, "T", {0, 3}, false, true},
        {"Ec", kIn, "T", {4, 2, 1}},
        {"Eu", kIn, "T", {5, 3, 1}},
        {"user", kIn, "i64", {4}},
        {"out", kOut, "T", {4, 0, 1}}},
       {},
       kFloats},
      {"rms_norm_backward",
       kRows,
       {{"dy", kIn, "T", {0, 1}},
        {"x", kIn, "T", {0, 1}},
        {"weight", kIn, "T", {1}, false, true},
        {"rstd", kIn, "f32", {0}},
        {"dx", kOut, "T", {0, 1}},
        {"dw", kOut, "T", {1}}},
       {},
       kFloats},
      {"map_id",
       {{"V", kVar}, {"T", kConst}},
       {{"values", kIn, "i64", {0}}, {"table", kIn, "i64", {1}, false, true}, {"index", kOut, "i64", {0}}},
       {},
       {"i64"}},
      {"mbdt",
       {{"F", kConst}, {"K", kConst}, {"B", kVar}},
       {{"X", kIn, "f32", {0, 2}},
        {"borders", kIn, "f32", {0, 1}, false, true},
        {"bin", kOut, "i64", {0, 2}}},
       {},
       {"f32"}},
      {"conv1d",
       {{"B", kVar}, {"L", kVar}, {"Ci", kConst}, {"Co", kConst}, {"K", kConst}, {"Lo", kDerived}},
       {{"x", kIn, "T", {0, 2, 1}},
        {"weight", kIn, "T", {3, 2, 4}, false, true},
        {"bias", kIn, "T", {3}, true, true},
        {"y", kOut, "T", {0, 3, 5}}},
       {{"padding", 1}, {"has_bias", 1}},
       kFloats},
      {"optimized_fm",
       {{"B", kVar}, {"N", kConst}, {"D", kConst}, {"K", kConst}},
       {{"X", kIn, "T", {0, 1, 2}}, {"Y", kIn, "T", {0, 1, 3}}, {"out", kOut, "T", {0, 1, 3}}},
       {},
       kFloats},
      {"pffn",
       {{"B", kVar}, {"N", kConst}, {"D", kConst}, {"K", kConst}},
       {{"X", kIn, "T", {0, 1, 2}},
        {"W1", kIn, "T", {0, 2, 3}},
        {"b1", kIn, "T", {3}, false, true},
        {"W2", kIn, "T", {0, 3, 2}},
        {"b2", kIn, "T", {2}, false, true},
        {"y", kOut, "T", {0, 1, 2}}},
       {{"eps", 1e-6}},
       kFloats},
  };
}

const std::vector<std::shared_ptr<const OpSchema>>& schemas() {
  static const auto list = [] {
    std::vector<std::shared_ptr<const OpSchema>> v;
    for (OpSchema& s : all()) v.push_back(std::make_shared<const OpSchema>(std::move(s)));
    return v;
  }();
  return list;
}

}  // namespace

std::shared_ptr<const OpSchema> cuda_schema(std::string_view op) {
  for (const auto& s : schemas())
    if (s->op == op) return s;
  return nullptr;
}

std::vector<std::string_view> cuda_ops() {
  std::vector<std::string_view> names;
  for (const auto& s : schemas()) names.emplace_back(s->op);
  return names;
}

}  // namespace niche::ops_cuda
