#include <ATen/ATen.h>

#include <cstdio>

#include "runtime/torch/torch.h"

int main() {
  niche::RuntimeConfig config = niche::torch_config();  // built-in operators, at::parallel_for
  config.cache_dir = "/tmp/niche-quickstart";           // verified kernels survive restarts here
  auto runtime = niche::Runtime::create(std::move(config));
  if (!runtime.ok()) return std::puts(runtime.status().to_string().c_str()), 1;

  // Once a call site: the operator and what the model fixes of it. Rows stay open.
  auto norm = (*runtime)->op("rms_norm", niche::kF32, {{"N", 1024}}, {{"eps", 1e-6}});
  if (!norm.ok()) return std::puts(norm.status().to_string().c_str()), 1;

  const at::InferenceMode inference;
  const at::Tensor x = at::randn({17, 1024}), weight = at::ones({1024});
  const niche::RequestScope request((*runtime)->dispatcher(), {.id = 1});  // optional: sticky rollout
  const at::Tensor y =
      niche::torch_call(*norm, x, weight);  // the best verified kernel, else the best ATen form

  std::printf("%ld rows\n%s", static_cast<long>(y.size(0)),
              (*runtime)->explain(*norm, {{"M", 17}})->to_text().c_str());
}
