// The same through at::Tensors: a call answers what ATen answers. With a path: an operator of a shared object, too.
#include <ATen/ATen.h>
#include <niche/runtime/torch/torch.h>

#include <cstdio>

namespace {

int fail(const niche::Status& s) { return std::fprintf(stderr, "%s\n", s.to_string().c_str()), 1; }

}  // namespace

int main(int argc, char** argv) {
  niche::RuntimeConfig config = niche::torch_config();
  config.cache_dir.clear();
  config.evolve = false;
  if (argc > 1) config.op_libraries = {argv[1]};
  auto runtime = niche::Runtime::create(std::move(config));
  if (!runtime.ok()) return fail(runtime.status());
  auto norm = (*runtime)->op("rms_norm", niche::kF32, {{"N", 64}}, {{"eps", 1e-6}});
  if (!norm.ok()) return fail(norm.status());
  const at::Tensor x = at::randn({3, 64}), w = at::randn({64});
  const at::Tensor got = niche::torch_call(*norm, x, w);
  const at::Tensor want = x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-6) * w;
  if (!at::allclose(got, want, 1e-4, 1e-5)) return 1;
  if (argc == 1) return 0;
  auto clamped = (*runtime)->op("clamped_relu", niche::kF32, {{"N", 64}}, {{"limit", 0.5}});
  if (!clamped.ok()) return fail(clamped.status());
  return at::equal(niche::torch_call(*clamped, x), at::clamp(x, 0, 0.5)) ? 0 : 1;
}
