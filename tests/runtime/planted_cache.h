// A cache directory with kernels of affine_kernels.c in it, as a session would have committed them.
#pragma once

#include <cstdlib>
#include <filesystem>

#include "evolve/definition_json.h"
#include "evolve/verdict.h"
#include "kernels_cache/kernel_cache.h"
#include "kernels_cache/sha256.h"
#include "runtime/host_environment.h"
#include "tests/runtime/affine_fixture.h"

namespace niche::testing_ops {

// A directory of this test alone, removed at its end.
class TempDir {
 public:
  TempDir() {
    std::string pattern = ::testing::TempDir() + "niche_runtime_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::unique_ptr<kernels_cache::KernelCache> open_cache(const std::string& dir) {
  kernels_cache::CacheOptions options;
  options.root = dir;
  auto environment = host_environment({}, {}, true);
  EXPECT_TRUE(environment.ok()) << environment.status().to_string();
  options.environment = *environment;
  auto cache = kernels_cache::KernelCache::open(options);
  EXPECT_TRUE(cache.ok()) << cache.status().to_string();
  return *std::move(cache);
}

struct Plant {
  std::string symbol = "affine_rows";
  Guard guard = rows(1, 4096);
  int64_t served_calls = 0;  // above 0: it was an incumbent before
  double speedup = 3;
  // Where it was timed, and how much faster than the library it was; empty: `speedup` at 4, 64 and 512 rows.
  std::vector<std::pair<int64_t, double>> timed = {};
};

inline kernels_cache::KernelRef plant(const std::string& dir, int64_t n, const Plant& p) {
  const AffineOp op;
  const auto definition = *Definition::make(op.schema(), kF32, {{"N", n}});
  kernels_cache::KernelRecord r;
  r.name = "affine.f32." + p.symbol;
  r.op = "affine";
  r.definition = definition->name();
  r.definition_json = evolve::definition_to_json(*definition);
  r.guard = p.guard;
  r.plan = affine_plan(p.symbol, n);
  r.provenance = {"affine.test", p.symbol, "planted", "cc",
                  kernels_cache::to_hex(kernels_cache::sha256(p.symbol))};
  r.artefact = affine_artefact();
  r.artefact_sha256 = kernels_cache::to_hex(kernels_cache::sha256(r.artefact));
  r.source = "affine_kernels.c";
  evolve::Verdict v;
  v.status = evolve::VerdictStatus::kFaster;
  v.guard = p.guard;
  auto timed = p.timed;
  if (timed.empty()) timed = {{4, p.speedup}, {64, p.speedup}, {512, p.speedup}};
  for (const auto& [m, speedup] : timed) {
    evolve::PointTiming t;
    t.var_axes = {m};
    t.fallback = "columns";
    t.fallback_ns = static_cast<double>(m * n) * speedup;
    t.kernel_ns = static_cast<double>(m * n);
    t.speedup = t.ci_low = t.ci_high = speedup;
    t.status = evolve::VerdictStatus::kFaster;
    v.timing.push_back(t);
  }
  r.verdict_json = v.to_json();
  r.fallback_ns = 64000 * p.speedup;
  r.kernel_ns = 64000;
  r.fallback_name = "columns";
  r.created_unix_ns = 1;
  r.served_calls = p.served_calls;
  auto cache = open_cache(dir);
  const auto committed = cache->commit(r);
  EXPECT_TRUE(committed.ok()) << committed.status().to_string();
  EXPECT_TRUE(cache->flush().ok());
  return kernels_cache::kernel_ref(r);
}

}  // namespace niche::testing_ops
