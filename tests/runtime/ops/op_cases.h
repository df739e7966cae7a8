// Problems each operator is tested on: small, odd, and one that reaches every vector width and tail.
#pragma once

#include "tests/runtime/ops/op_harness.h"

namespace niche::ops::test {

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* type : {"f32", "f16", "bf16"}) {
    for (const char* op : {"rms_norm", "fused_add_rms_norm", "fused_add_rms_norm_inplace", "layer_norm",
                           "silu_mul", "softmax"})
      for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 64}, {3, 257}, {17, 1000}, {5, 4096}, {4, 1}})
        cases.push_back({op, type, {{"M", m}, {"N", n}}});
    for (double tanh : {0.0, 1.0})
      cases.push_back({"gelu_mul", type, {{"M", 17}, {"N", 1000}}, {{"tanh", tanh}}});
    for (double pairs : {0.0, 1.0}) {
      cases.push_back({"rope", type, {{"T", 1}, {"H", 3}, {"D", 6}, {"P", 5}}, {{"interleaved", pairs}}});
      cases.push_back({"rope", type, {{"T", 33}, {"H", 8}, {"D", 64}, {"P", 300}}, {{"interleaved", pairs}}});
    }
    for (double activation : {0.0, 1.0, 2.0, 3.0})
      cases.push_back({"linear", type, {{"M", 5}, {"N", 33}, {"K", 70}}, {{"activation", activation}}});
    cases.push_back({"linear", type, {{"M", 1}, {"N", 256}, {"K", 512}}, {{"has_bias", 0}}});
    cases.push_back({"sdpa_decode", type, {{"B", 2}, {"S", 37}, {"Hq", 4}, {"Hk", 2}, {"D", 16}}});
    cases.push_back(
        {"sdpa_decode", type, {{"B", 1}, {"S", 300}, {"Hq", 3}, {"Hk", 3}, {"D", 64}}, {{"scale", 0.2}}});
    cases.push_back({"sdpa_decode", type, {{"B", 1}, {"S", 1}, {"Hq", 8}, {"Hk", 1}, {"D", 8}}});
    cases.push_back({"conv1d", type, {{"B", 2}, {"L", 33}, {"Ci", 12}, {"Co", 20}, {"K", 3}}});
    cases.push_back({"conv1d", type, {{"B", 1}, {"L", 200}, {"Ci", 96}, {"Co", 96}, {"K", 3}}});
    cases.push_back({"conv1d",
                     type,
                     {{"B", 3}, {"L", 7}, {"Ci", 5}, {"Co", 3}, {"K", 7}},
                     {{"padding", 0}, {"has_bias", 0}}});
    cases.push_back({"conv1d", type, {{"B", 1}, {"L", 1}, {"Ci", 1}, {"Co", 9}, {"K", 1}}, {{"padding", 2}}});
    cases.push_back({"optimized_fm", type, {{"B", 3}, {"N", 5}, {"D", 7}, {"K", 9}}});
    cases.push_back({"optimized_fm", type, {{"B", 2}, {"N", 40}, {"D", 224}, {"K", 448}}});
    cases.push_back({"pffn", type, {{"B", 2}, {"N", 7}, {"D", 12}, {"K", 33}}});
    cases.push_back({"pffn", type, {{"B", 1}, {"N", 50}, {"D", 96}, {"K", 192}}});
    for (double mean : {0.0, 1.0}) {
      cases.push_back(
          {"embedding_bag", type, {{"V", 100}, {"D", 17}, {"I", 57}, {"B", 9}}, {{"mean", mean}}});
      cases.push_back(
          {"embedding_bag", type, {{"V", 1000}, {"D", 64}, {"I", 800}, {"B", 40}}, {{"mean", mean}}});
    }
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 64}, {3, 257}, {130, 100}, {5, 4096}, {4, 3}})
      cases.push_back({"rms_norm_backward", type, {{"M", m}, {"N", n}}});
    cases.push_back(
        {"ikbo_linear_compression", type, {{"M", 7}, {"N", 9}, {"Kc", 5}, {"Ku", 11}, {"B", 6}, {"U", 2}}});
    cases.push_back({"ikbo_linear_compression",
                     type,
                     {{"M", 43}, {"N", 32}, {"Kc", 86}, {"Ku", 117}, {"B", 15}, {"U", 3}}});
  }
  for (const char* type : {"f32", "bf16"}) {
    cases.push_back({"selective_state_update", type, {{"B", 3}, {"D", 33}, {"S", 16}}});
    cases.push_back({"selective_state_update", type, {{"B", 1}, {"D", 256}, {"S", 128}}});
    cases.push_back({"selective_state_update",
                     type,
                     {{"B", 2}, {"D", 5}, {"S", 7}},
                     {{"has_D", 0}, {"has_z", 0}, {"has_dt_bias", 0}, {"dt_softplus", 0}}});
    cases.push_back(
        {"selective_state_update", type, {{"B", 2}, {"D", 8}, {"S", 3}}, {{"has_z", 0}, {"dt_softplus", 0}}});
  }
  for (const auto& [f, u, e, w, limit] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t, double>{1, 3, 8, 9, 2},
        {9, 16, 1600, 2400, 7},
        {5, 7, 0, 0, 3},
        {3, 4, 40, 0, 2},
        {2, 5, 64, 100, 1000},
        {2, 3, 50, 70, 0}})
    cases.push_back(
        {"batch_event_truncate", "i64", {{"F", f}, {"U", u}, {"E", e}, {"W", w}}, {{"max_events", limit}}});
  for (const auto& [v, t] :
       {std::pair<int64_t, int64_t>{1, 1}, {100, 1}, {203, 2}, {1000, 1023}, {777, 10000}})
    cases.push_back({"map_id", "i64", {{"V", v}, {"T", t}}});
  for (const auto& [f, k, b] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {2, 2, 64}, {5, 7, 33}, {64, 8, 130}})
    cases.push_back({"mbdt", "f32", {{"F", f}, {"K", k}, {"B", b}}});
  return cases;
}

}  // namespace niche::ops::test
