#include "tests/runtime/ops_cuda/cases.h"

#include <cstdio>
#include <cstdlib>

#include "runtime/ops/cuda/schemas.h"

namespace niche::ops_cuda_test {

const std::vector<Case>& cases() {
  static const std::vector<std::string> all = {"bf16", "f16", "f32"};
  static const std::vector<Case> list = {
      {"rms_norm", {{"N", 4096}}, all},           {"rms_norm", {{"N", 1021}}, {"bf16"}},
      {"fused_add_rms_norm", {{"N", 4096}}, all}, {"fused_add_rms_norm_inplace", {{"N", 2560}}, {"bf16"}},
      {"layer_norm", {{"N", 768}}, all},          {"softmax", {{"N", 1000}}, all},
      {"silu_mul", {{"N", 14336}}, all},          {"silu_mul", {{"N", 77}}, {"bf16"}},
      {"rms_norm_backward", {{"N", 1024}}, all},  {"rms_norm_backward", {{"N", 333}}, {"bf16"}},
      {"map_id", {{"T", 10000}}, {"i64"}},        {"map_id", {{"T", 1000003}}, {"i64"}},
      {"mbdt", {{"F", 64}, {"K", 8}}, {"f32"}},   {"mbdt", {{"F", 17}, {"K", 300}}, {"f32"}},
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

}  // namespace niche::ops_cuda_test
