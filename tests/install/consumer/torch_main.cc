// The same through at::Tensors: a call answers what ATen answers.
#include <ATen/ATen.h>
#include <niche/runtime/torch/torch.h>

#include <cstdio>

int main() {
  niche::RuntimeConfig config = niche::torch_config();
  config.cache_dir.clear();
  config.evolve = false;
  auto runtime = niche::Runtime::create(std::move(config));
  if (!runtime.ok()) {
    std::fprintf(stderr, "%s\n", runtime.status().to_string().c_str());
    return 1;
  }
  auto norm = (*runtime)->op("rms_norm", niche::kF32, {{"N", 64}}, {{"eps", 1e-6}});
  if (!norm.ok()) {
    std::fprintf(stderr, "%s\n", norm.status().to_string().c_str());
    return 1;
  }
  const at::Tensor x = at::randn({3, 64}), w = at::randn({64});
  const at::Tensor got = niche::torch_call(*norm, x, w);
  const at::Tensor want = x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-6) * w;
  return at::allclose(got, want, 1e-4, 1e-5) ? 0 : 1;
}
