#include "tests/runtime/ops_cuda/cases.h"

#include <cstdio>
#include <cstdlib>
#include <set>

#include "runtime/ops/cuda/schemas.h"

namespace niche::ops_cuda_test {

using evolve::Point;

const std::vector<Case>& cases() {
  static const std::vector<std::string> all = {"bf16", "f16", "f32"};
  static const std::vector<Case> list = {
      {"rms_norm", {{"N", 4096}}, all},
      {"rms_norm", {{"N", 1021}}, {"bf16"}},
      {"fused_add_rms_norm", {{"N", 4096}}, all},
      {"fused_add_rms_norm_inplace", {{"N", 2560}}, {"bf16"}},
      {"layer_norm", {{"N", 768}}, all},
      {"softmax", {{"N", 1000}}, all},
      {"silu_mul", {{"N", 14336}}, all},
      {"silu_mul", {{"N", 77}}, {"bf16"}},
      {"rms_norm_backward", {{"N", 1024}}, all},
      {"rms_norm_backward", {{"N", 333}}, {"bf16"}},
      {"map_id", {{"T", 10000}}, {"i64"}},
      {"map_id", {{"T", 1000003}}, {"i64"}},
      {"mbdt", {{"F", 64}, {"K", 8}}, {"f32"}},
      {"mbdt", {{"F", 17}, {"K", 300}}, {"f32"}},
      {"conv1d", {{"Ci", 96}, {"Co", 96}, {"K", 3}}, {"f16", "f32"}},
      {"conv1d", {{"Ci", 5}, {"Co", 33}, {"K", 4}}, {"f32"}, {{"has_bias", 0}, {"padding", 0}}},
      {"optimized_fm", {{"N", 24}, {"D", 224}, {"K", 2198}}, {"f16", "f32"}},
      {"pffn", {{"N", 150}, {"D", 96}, {"K", 192}}, {"f16", "f32"}},
      {"gelu_mul", {{"N", 14336}}, all},
      {"gelu_mul", {{"N", 77}}, {"f16"}, {{"tanh", 1}}},
      {"rope", {{"H", 32}, {"D", 128}, {"P", 4096}}, all},
      {"rope", {{"H", 6}, {"D", 36}, {"P", 100}}, {"bf16", "f32"}, {{"interleaved", 1}}},
      {"linear", {{"N", 4096}, {"K", 4096}}, all},
      {"linear", {{"N", 1001}, {"K", 416}}, {"bf16"}, {{"has_bias", 0}, {"activation", 3}}},
      {"sdpa_decode", {{"Hq", 32}, {"Hk", 8}, {"D", 128}}, all},
      {"sdpa_decode", {{"Hq", 3}, {"Hk", 3}, {"D", 64}}, {"f16"}},
      {"embedding_bag", {{"V", 100000}, {"D", 64}}, all},
      {"embedding_bag", {{"V", 1000}, {"D", 37}}, {"f32"}, {{"mean", 1}}},
      {"ikbo_linear_compression", {{"M", 433}, {"N", 256}, {"Kc", 866}, {"Ku", 1178}}, {"f16", "bf16"}},
      {"ikbo_linear_compression", {{"M", 100}, {"N", 72}, {"Kc", 64}, {"Ku", 40}}, {"bf16"}},
  };
  return list;
}

std::shared_ptr<const dispatch::Definition> definition(const Case& c, const std::string& dtype) {
  const auto schema = ops_cuda::cuda_schema(c.op);
  const auto type = dispatch::parse_dtype(dtype);
  auto d = schema != nullptr && type.ok() ? dispatch::Definition::make(schema, *type, c.consts, c.attrs)
                                          : dispatch::invalid("no schema '" + c.op + "' or type " + dtype);
  if (!d.ok()) {
    std::fprintf(stderr, "%s\n", d.status().to_string().c_str());
    std::abort();
  }
  return *d;
}

std::vector<Point> corners(const evolve::CudaTemplateFamily& family, const dispatch::Definition& d,
                           const evolve::CudaTarget& t) {
  const auto seeds = family.seeds(d, t);
  if (seeds.empty()) return {};
  std::set<Point> chosen{seeds.front()};
  const auto& params = family.params();
  for (size_t i = 0; i < params.size(); ++i)
    for (size_t value = 0; value < params[i].values.size(); ++value)
      for (const Point& seed : seeds) {
        Point p = seed;
        p[i] = static_cast<int>(value);
        if (!family.valid(d, t, p)) continue;
        chosen.insert(p);
        break;
      }
  return {chosen.begin(), chosen.end()};
}

std::vector<Point> thinned(const std::vector<Point>& all, size_t most) {
  if (all.size() <= most) return all;
  std::vector<Point> some;
  for (size_t i = 0; i < most; ++i) some.push_back(all[i * all.size() / most]);
  return some;
}

}  // namespace niche::ops_cuda_test
