// niche_handle_check OUT.json [LIBNVRTC]: OpHandle on tensors of a real CUDA device: for some operators, a
// kernel of a family serves calls from a Runtime, compared with the library's answer; what a call through the
// handle costs beside a bare cuLaunchKernel of the same kernel; and a rollback that the next call sees.
//
// Tensors, streams and library forms are ATen's: libtorch_cuda is opened by name, since niche links its CPU half.
#include <ATen/ATen.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dispatch/devices/cuda/cuda_kernel.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "runtime/handle_state.h"
#include "runtime/ops/cuda/families.h"
#include "runtime/torch/torch.h"

namespace {

using namespace niche;
using json = nlohmann::json;

void die(const std::string& why) {
  std::fprintf(stderr, "handle_check: %s\n", why.c_str());
  std::exit(1);
}
template <typename T>
T must(Result<T> r) {
  if (!r.ok()) die(r.status().to_string());
  return std::move(*r);
}
void must(const Status& s) {
  if (!s.ok()) die(s.to_string());
}

DLTensor view(const at::Tensor& t, DLDataType dtype) {
  DLTensor d{};
  d.data = t.data_ptr();
  d.device = {kDLCUDA, 0};
  d.ndim = static_cast<int>(t.dim());
  d.shape = const_cast<int64_t*>(t.sizes().data());
  d.dtype = dtype;
  return d;
}
at::ScalarType scalar(DLDataType t) {
  return t.code == kDLBfloat ? at::kBFloat16 : t.bits == 16 ? at::kHalf : at::kFloat;
}

class Check {
 public:
  Check(const char* out, const char* nvrtc) : out_(out) {
    toolchain_ = must(evolve::CudaToolchain::find({.library = nvrtc}));
    driver_ = must(dispatch::CudaDriver::load());
    auto found = must(dispatch::CudaInfo::discover(*driver_));
    if (found.empty()) die("no CUDA device");
    device_ = must(dispatch::CudaDevice::open(driver_, found[0]));
    ops_cuda::register_cuda_families(families_);
    target_ = evolve::CudaTarget::named(device_->info().arch());
    RuntimeConfig c = torch_config();
    c.evolve = false;
    c.cuda_devices = 1;
    workspace_ = at::empty({int64_t{64} << 20}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
    c.device_workspace = [this](int, void*, int64_t bytes) -> void* {
      return bytes <= workspace_.numel() ? workspace_.data_ptr() : nullptr;
    };
    runtime_ = must(Runtime::create(std::move(c)));
    result_["device"] = device_->info().device_class();
  }

  std::shared_ptr<dispatch::Route> serve(const OpHandle& h) {
    const auto& d = h.state()->definition();
    const auto families = families_.for_op(d->schema().op);
    for (const auto* f : families)
      for (const auto& point : f->seeds(*d, target_)) {
        auto source = f->render(*d, target_, point);
        auto cubin = must(toolchain_->compile(source.kernel_name, source.text, target_.arch));
        auto module = must(dispatch::CudaModule::load(device_, cubin.bytes, source.kernel_name));
        dispatch::CudaKernelSpec spec{source.kernel_name, d, source.limits, source.plan,
                                      source.properties,  {}};
        kernel_ = must(dispatch::load_cuda_kernel(std::move(spec), module));
        auto& dispatcher = runtime_->dispatcher();
        auto route = must(dispatcher.make_route({d, dispatcher.fallback(h.id(), 0), kernel_, nullptr,
                                                 dispatch::RolloutState::kIncumbent, 0, "check"}));
        must(
            dispatcher.publisher().put_region({h.state()->site(1).prefix(), kernel_->guard, route}).status());
        must(dispatcher.publisher().commit());
        return route;
      }
    die(std::string(d->name()) + ": no family has a seed");
    return {};
  }

  void call(const OpHandle& h, std::vector<at::Tensor>& t, DLDataType dtype) {
    std::vector<DLTensor> args;
    for (auto& x : t) args.push_back(view(x, dtype));
    must(h.call(args, nullptr));
  }

  // Largest difference between the kernel's answer and the library's, over the library's largest value.
  void compare(const std::string& name, const OpHandle& h, std::vector<at::Tensor> t, DLDataType dtype) {
    auto route = serve(h);
    at::Tensor& y = t.back();
    y.fill_(NAN);
    const auto served = [&] {
      const dispatch::RouteCounts c = runtime_->dispatcher().counts(*route);
      return c.by_rung[static_cast<int>(dispatch::Rung::kExact)] +
             c.by_rung[static_cast<int>(dispatch::Rung::kRegion)];
    };
    const uint64_t before = served();
    call(h, t, dtype);
    const bool by_kernel = served() > before;
    const at::Tensor mine = y.to(at::kDouble).clone();
    const double cost = launch_cost(h, t, dtype);
    route->roll_back();
    must(runtime_->dispatcher().publisher().erase_route(*route));
    must(runtime_->dispatcher().publisher().commit());
    y.fill_(NAN);
    call(h, t, dtype);
    const at::Tensor library = y.to(at::kDouble);
    const double top = library.abs().max().item<double>(),
                 worst = (mine - library).abs().max().item<double>();
    const bool right = by_kernel && std::isfinite(worst) && worst <= 0.02 * top;
    std::printf("%-28s %-60s %s  max difference %.2e of %.2e; %.0f ns over a bare launch\n", name.c_str(),
                kernel_->name.c_str(),
                right       ? "right"
                : by_kernel ? "WRONG"
                            : "NOT SERVED",
                worst, top, cost);
    std::fflush(stdout);
    all_right_ &= right;
    result_["calls"].push_back({{"op", name},
                                {"kernel", kernel_->name},
                                {"right", right},
                                {"by_kernel", by_kernel},
                                {"difference", worst},
                                {"largest", top},
                                {"over_bare_ns", cost}});
    save();
  }

  // Median of alternated bursts of 30 launches: handle.call minus cuLaunchKernel of its first phase.
  double launch_cost(const OpHandle& h, std::vector<at::Tensor>& t, DLDataType dtype) {
    std::vector<DLTensor> args;
    for (auto& x : t) args.push_back(view(x, dtype));
    dispatch::NicheCudaArgs packed{};
    for (size_t i = 0; i < t.size(); ++i) packed.p[i] = t[i].data_ptr();
    const auto& p = kernel_->cuda_phases[0];
    long n[dispatch::kMaxAxes] = {};
    for (size_t i = 0; i < h.definition().schema().axes.size(); ++i) n[i] = axes_[i];
    const unsigned blocks = kernel_->blocks(0, n);
    for (size_t i = 0; i < h.definition().schema().axes.size(); ++i) packed.n[i] = n[i];
    packed.blocks[0] = blocks;
    void* parameters[] = {&packed};
    std::vector<double> differences;
    for (int round = 0; round < 201; ++round) {
      const auto ns = [&](auto&& body) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < 30; ++i) body();
        const double d =
            std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
        driver_->cuStreamSynchronize(nullptr);
        return d / 30;
      };
      double bare = 0, mine = 0;
      const auto run_bare = [&] {
        bare = ns([&] {
          driver_->cuLaunchKernel(p.function, blocks, 1, 1, p.threads, 1, 1, p.shared_bytes, nullptr,
                                  parameters, nullptr);
        });
      };
      const auto run_mine = [&] {
        const RequestScope scope(runtime_->dispatcher(), {.id = 1, .capture = CaptureState::kNone});
        mine = ns([&] { (void)h.call(args, nullptr); });
      };
      if (round % 2 == 0)
        run_bare(), run_mine();
      else
        run_mine(), run_bare();
      differences.push_back(mine - bare);
    }
    std::nth_element(differences.begin(), differences.begin() + 100, differences.end());
    return differences[100];
  }

  at::Tensor random(at::IntArrayRef shape, DLDataType dtype, double scale = 1, double mean = 0) {
    return (at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kFloat)) * scale + mean)
        .to(scalar(dtype));
  }
  at::Tensor empty(at::IntArrayRef shape, DLDataType dtype) {
    return at::empty(shape, at::TensorOptions(at::kCUDA).dtype(scalar(dtype)));
  }

  int run() {
    for (const int64_t m : {256, 37}) {
      axes_ = {m, 4096};
      compare("rms_norm bf16 x " + std::to_string(m),
              must(runtime_->op("rms_norm", kBf16, {{"N", 4096}}, {{"eps", 1e-6}})),
              {random({m, 4096}, kBf16), random({4096}, kBf16, 0.1, 1), empty({m, 4096}, kBf16)}, kBf16);
      axes_ = {m, 776};
      compare("silu_mul bf16 x " + std::to_string(m), must(runtime_->op("silu_mul", kBf16, {{"N", 776}})),
              {random({m, 776}, kBf16), random({m, 776}, kBf16), empty({m, 776}, kBf16)}, kBf16);
    }
    axes_ = {64, 24, 224, 448};
    compare("optimized_fm bf16 x 64",
            must(runtime_->op("optimized_fm", kBf16, {{"N", 24}, {"D", 224}, {"K", 448}})),
            {random({64, 24, 224}, kBf16), random({64, 24, 448}, kBf16), empty({64, 24, 448}, kBf16)}, kBf16);
    axes_ = {64, 200, 96, 96, 3, 200};
    compare("conv1d bf16 x 64,200",
            must(runtime_->op("conv1d", kBf16, {{"Ci", 96}, {"Co", 96}, {"K", 3}},
                              {{"padding", 1}, {"has_bias", 1}})),
            {random({64, 96, 200}, kBf16), random({96, 96, 3}, kBf16, 0.05), random({96}, kBf16, 0.05),
             empty({64, 96, 200}, kBf16)},
            kBf16);
    result_["all_right"] = all_right_;
    save();
    std::printf("%s\n", all_right_ ? "every call right" : "SOMETHING IS WRONG");
    return all_right_ ? 0 : 1;
  }

 private:
  void save() { std::ofstream(out_) << result_.dump(1) << '\n'; }

  std::string out_;
  std::unique_ptr<evolve::CudaToolchain> toolchain_;
  std::shared_ptr<const dispatch::CudaDriver> driver_;
  std::shared_ptr<const dispatch::CudaDevice> device_;
  evolve::CudaFamilyRegistry families_;
  evolve::CudaTarget target_;
  at::Tensor workspace_;
  std::unique_ptr<Runtime> runtime_;
  std::shared_ptr<const dispatch::CudaKernel> kernel_;
  std::vector<long> axes_;
  bool all_right_ = true;
  json result_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) die("usage: niche_handle_check OUT.json [LIBNVRTC]");
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) die(::dlerror());
  Check check(argv[1], argc > 2 ? argv[2] : "");
  return check.run();
}
