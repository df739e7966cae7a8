#include "bench/cuda/copy_family.h"

#include "runtime/ops/cuda/cuda_space_family.h"

namespace niche::bench_cuda {
namespace {

using namespace niche::ops_cuda;

constexpr std::string_view kBody = R"(
extern "C" __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Args a) {
  const uint4* x = (const uint4*)a.p[0];
  uint4* y = (uint4*)a.p[1];
  const i64 n = a.n[0] * N / 4;
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (i64)gridDim.x * THREADS) y[i] = x[i];
}
)";

class CopyFamily : public CudaSpaceFamily {
 public:
  CopyFamily()
      : CudaSpaceFamily("copy.flat", "copy", {{"threads", {256, 512, 1024}}, {"persist", {0, 2, 4}}}) {}
  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    s.text = CudaSource().let("N", d.const_extents()[1]).let("THREADS", v["threads"]).body(kBody).take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, int64_t{v["threads"]} * 4 / d.const_extents()[1]}};
    p.threads = v["threads"];
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, 16);
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    return d.const_extents()[1] == 4 && v["threads"] * v["persist"] <= t.threads_per_sm;
  }
  std::vector<Settings> seed_points(const Definition&, const CudaTarget&) const override {
    return {{{"threads", 256}}, {{"threads", 512}}, {{"threads", 1024}}, {{"threads", 512}, {"persist", 4}}};
  }
};

}  // namespace

std::shared_ptr<const dispatch::OpSchema> copy_schema() {
  using enum dispatch::ArgRole;
  static const auto schema = std::make_shared<const dispatch::OpSchema>(
      dispatch::OpSchema{"copy",
                         {{"M", dispatch::AxisKind::kVar}, {"N", dispatch::AxisKind::kConst}},
                         {{"x", kIn, "T", {0, 1}}, {"y", kOut, "T", {0, 1}}},
                         {},
                         {"f32"}});
  return schema;
}

void add_copy_family(evolve::CudaFamilyRegistry& registry) { registry.add(std::make_shared<CopyFamily>()); }

}  // namespace niche::bench_cuda
