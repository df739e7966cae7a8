#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>

#include "runtime/torch/torch.h"

int main(int argc, char** argv) {
  niche::RuntimeConfig config = niche::torch_config();              // built-in operators, at::parallel_for
  config.cache_dir = argc > 1 ? argv[1] : "/tmp/niche-quickstart";  // verified kernels survive restarts here
  auto runtime = niche::Runtime::create(std::move(config));
  if (!runtime.ok()) return std::puts(runtime.status().to_string().c_str()), 1;

  // Once a call site: the operator and what the model fixes of it. Rows stay open.
  auto norm = (*runtime)->op("rms_norm", niche::kF32, {{"N", 1024}}, {{"eps", 1e-6}});
  if (!norm.ok()) return std::puts(norm.status().to_string().c_str()), 1;

  const at::InferenceMode inference;
  const at::Tensor x = at::randn({17, 1024}), weight = at::ones({1024});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  niche::Explanation why;
  for (uint64_t id = 1; why.rollout != "incumbent" && std::chrono::steady_clock::now() < end; ++id) {
    const niche::RequestScope request((*runtime)->dispatcher(), {.id = id});  // optional: sticky rollout
    const at::Tensor y =
        niche::torch_call(*norm, x, weight);  // the best verified kernel, else ATen's best form
    if (id % 1000 == 1) why = *(*runtime)->explain(*norm, {{"M", y.size(0)}});
  }
  std::puts(why.to_text().c_str());
}
