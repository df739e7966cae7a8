#include "bench/cuda/two_gpus/stocked_cache.h"

#include <filesystem>

#include "bench/cuda/two_gpus/serving.h"
#include "evolve/cuda_plan_text.h"
#include "evolve/definition_json.h"
#include "evolve/device_family.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "evolve/verdict.h"
#include "kernels_cache/kernel_cache.h"
#include "kernels_cache/sha256.h"
#include "runtime/cuda/cuda.h"
#include "runtime/device_plane.h"
#include "runtime/ops/cuda/families.h"

namespace niche::two_gpus {
namespace {

using kernels_cache::sha256;
using kernels_cache::to_hex;

struct Seed {
  const evolve::CudaTemplateFamily* family = nullptr;
  evolve::CudaKernelSource source;
};

Seed plain_seed(const dispatch::Definition& d, const evolve::CudaFamilyRegistry& families,
                const evolve::CudaTarget& target) {
  for (const auto* f : families.for_op(d.schema().op))
    for (const auto& point : f->seeds(d, target)) {
      auto source = f->render(d, target, point);
      if (source.plan.phases.size() == 1 && source.plan.phases[0].cluster == 1 &&
          source.plan.workspace_bytes == 0)
        return {f, std::move(source)};
    }
  throw std::runtime_error(d.name() + ": no family has a plain seed");
}

// What a Runtime asks of a kernel that is to serve: faster at some points, far enough that live times do not overrule it.
evolve::Verdict stand_in_verdict(const dispatch::Definition& d, const dispatch::Guard& guard) {
  constexpr double kLibraryNs = 20'000, kKernelNs = 5'000;
  evolve::Verdict v;
  v.status = evolve::VerdictStatus::kFaster;
  v.guard = guard;
  for (const int64_t m : {int64_t{16}, int64_t{256}, int64_t{1024}}) {
    evolve::PointTiming t;
    t.var_axes.assign(d.var_axes().size(), m);
    t.fallback_ns = kLibraryNs;
    t.kernel_ns = kKernelNs;
    t.speedup = t.ci_low = t.ci_high = kLibraryNs / kKernelNs;
    t.status = evolve::VerdictStatus::kFaster;
    v.timing.push_back(t);
  }
  return v;
}

}  // namespace

void stock_cache(const RuntimeConfig& config, const dispatch::CudaDriver& driver,
                 const std::vector<std::shared_ptr<const dispatch::Definition>>& definitions) {
  std::filesystem::remove_all(config.cache_dir);
  std::filesystem::create_directories(config.cache_dir);
  kernels_cache::CacheOptions options;
  options.root = config.cache_dir;
  options.environment =
      must(config.devices->environment(0, config.libraries, config.op_libraries, config.evolve));
  auto cache = must(kernels_cache::KernelCache::open(std::move(options)));
  auto toolchain = must(evolve::CudaToolchain::find({}));
  const auto target = must(cuda_target(driver, 0));
  evolve::CudaFamilyRegistry families;
  ops_cuda::register_cuda_families(families);
  for (const auto& d : definitions) {
    const Seed seed = plain_seed(*d, families, target);
    const auto& source = seed.source;
    const evolve::Verdict verdict = stand_in_verdict(*d, source.limits);
    kernels_cache::KernelRecord r;
    r.name = source.kernel_name;
    r.op = d->schema().op;
    r.definition = d->name();
    r.definition_json = evolve::definition_to_json(*d);
    r.kind = dispatch::KernelKind::kCuda;
    r.guard = source.limits;
    r.plan = evolve::tiles_of(source.plan);
    r.cuda_plan = source.plan;
    r.properties = source.properties;
    r.provenance = {seed.family->name(), "first plain seed", "stocked", toolchain->version(),
                    to_hex(sha256(source.text))};
    r.source = source.text;
    r.artefact = must(toolchain->compile(source.kernel_name, source.text, target.arch)).bytes;
    r.artefact_sha256 = to_hex(sha256(r.artefact));
    r.verdict_json = verdict.to_json();
    r.fallback_ns = verdict.timing[0].fallback_ns;
    r.kernel_ns = verdict.timing[0].kernel_ns;
    r.created_unix_ns = 1;
    r.served_calls = 1000;
    must(cache->commit(r).status());
  }
  must(cache->flush());
}

}  // namespace niche::two_gpus
