// niche_two_devices_check OUT.json: one Runtime over two GPUs.
//   both    the same kernels published for each device; threads serve both at once; answers, counts and device times a
//           device; nothing of one device's is the other's
//   refused launches on device 1 are refused for a while: its library answers, device 0 goes on by its kernels
//   cost    a call on device 0 of a Runtime that knows one device, and of one that knows two, in turns
//   lost    a kernel writes outside of all memory on device 1: calls there say kDevice and name it; device 0 goes on
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/cuda/two_gpus/serving.h"
#include "dispatch/devices/cuda/cuda_kernel.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "runtime/cuda/cuda.h"
#include "runtime/ops/cuda/families.h"
#include "runtime/torch/cuda_forms.h"
#include "runtime/torch/torch.h"

namespace {

using namespace niche;
using namespace niche::two_gpus;
using json = nlohmann::json;

// Driver calls that this check bends: launches of one function are refused; one device is all that there is.
std::shared_ptr<const dispatch::CudaDriver> real_driver;
std::atomic<CUfunction> refused_function{nullptr};
std::atomic<uint64_t> refusals{0};

CUresult launch_or_refuse(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, CUstream stream, void** parameters, void** extra) {
  if (f == refused_function.load(std::memory_order_relaxed)) {
    refusals.fetch_add(1);
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  }
  return real_driver->cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
CUresult one_device(int* n) {
  *n = 1;
  return CUDA_SUCCESS;
}

struct Server {
  explicit Server(std::shared_ptr<const dispatch::CudaDriver> with) : driver(std::move(with)) {
    config = torch_config();
    config.evolve = false;
    config.time_one_in = 16;
    must(enable_cuda(&config, driver));
    runtime = must(Runtime::create(config));
    for (int i = 0; i < config.cuda_devices; ++i)
      devices.push_back(must(dispatch::CudaDevice::open(
          driver, must(dispatch::CudaInfo::discover(*driver))[static_cast<size_t>(i)])));
  }
  // One kernel of a family that needs one plain launch, for this device alone.
  std::shared_ptr<const dispatch::CudaKernel> publish(const OpHandle& h, int ordinal) {
    const auto& d = h.state()->definition();
    auto toolchain = must(evolve::CudaToolchain::find({}));
    const auto target = must(cuda_target(*driver, ordinal));
    evolve::CudaFamilyRegistry families;
    ops_cuda::register_cuda_families(families);
    for (const auto* f : families.for_op(d->schema().op))
      for (const auto& point : f->seeds(*d, target)) {
        const auto source = f->render(*d, target, point);
        if (source.plan.phases.size() != 1 || source.plan.phases[0].cluster != 1 ||
            source.plan.phases[0].overlap || source.plan.workspace_bytes != 0)
          continue;
        auto cubin = must(toolchain->compile(source.kernel_name, source.text, target.arch));
        auto module = must(dispatch::CudaModule::load(devices[static_cast<size_t>(ordinal)], cubin.bytes,
                                                      source.kernel_name));
        auto kernel = must(dispatch::load_cuda_kernel(
            {source.kernel_name, d, source.limits, source.plan, source.properties, {}}, module));
        auto& dispatcher = runtime->dispatcher();
        auto route = must(dispatcher.make_route({d, dispatcher.fallback(h.id(), 0), kernel, nullptr,
                                                 dispatch::RolloutState::kIncumbent, 0, "check"}));
        must(dispatcher.publisher()
                 .put_region({h.state()->site(ordinal + 1).prefix(), kernel->guard, route})
                 .status());
        must(dispatcher.publisher().commit());
        routes.push_back(route);
        return kernel;
      }
    throw std::runtime_error(d->name() + ": no family has a plain seed");
  }
  uint64_t served(const dispatch::Route& r) const {
    const dispatch::RouteCounts c = runtime->dispatcher().counts(r);
    return c.by_rung[static_cast<int>(dispatch::Rung::kExact)] +
           c.by_rung[static_cast<int>(dispatch::Rung::kRegion)];
  }

  std::shared_ptr<const dispatch::CudaDriver> driver;
  RuntimeConfig config;
  std::unique_ptr<Runtime> runtime;
  std::vector<std::shared_ptr<const dispatch::CudaDevice>> devices;
  std::vector<std::shared_ptr<dispatch::Route>> routes;
};

class Check {
 public:
  explicit Check(std::string out) : out_(std::move(out)) {
    must(open_torch_cuda());
    real_driver = must(dispatch::CudaDriver::load());
    auto bent = std::make_shared<dispatch::CudaDriver>(*real_driver);
    bent->cuLaunchKernel = launch_or_refuse;
    two_ = std::make_unique<Server>(bent);
    if (two_->config.cuda_devices < 2)
      throw std::runtime_error("this machine has fewer than two CUDA devices");
    for (const auto& info : must(dispatch::CudaInfo::discover(*real_driver)))
      result_["devices"].push_back(info.device_class());
  }

  int run() {
    both();
    refused();
    cost();
    lost();
    std::printf("%s\n", fine_ ? "two devices: all good" : "two devices: SOMETHING IS WRONG");
    return fine_ ? 0 : 1;
  }

 private:
  void say(const char* section, bool good, json j) {
    j["good"] = good;
    fine_ = fine_ && good;
    std::printf("%-8s %s %s\n", section, good ? "good" : "BAD", j.dump().c_str());
    std::fflush(stdout);
    result_[section] = std::move(j);
    std::ofstream(out_) << result_.dump(1) << '\n';
  }
  OpHandle handle(Server& s) {
    return must(s.runtime->op("rms_norm", kBf16, {{"N", 4096}}, {{"eps", 1e-6}}));
  }
  Served site(Server& s, int ordinal) {
    Served x("rms_norm on " + std::to_string(ordinal), handle(s), ordinal,
             {random({256, 4096}, ordinal), random({4096}, ordinal, 0.1, 1), blank({256, 4096}, ordinal)});
    return x;
  }
  // Each on its own device, whose context is current there. Returns answers that were wrong, or statuses not ok.
  uint64_t serve(Served& s, int calls, std::string* problem) {
    const dispatch::CudaDevice::Scope scope(*two_->devices[static_cast<size_t>(s.device)]);
    uint64_t wrong = 0;
    for (int i = 0; i < calls; ++i) {
      if (const Status status = s.call(); !status.ok()) {
        *problem = status.to_string();
        ++wrong;
        continue;
      }
      if (i % 50 != 0) continue;
      wrong += !s.right();
      s.tensors.back().fill_(NAN);
    }
    return wrong;
  }

  // Both devices at once, a thread each.
  void serve_both(int calls, uint64_t (&wrong)[2], std::string (&problem)[2]) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i)
      threads.emplace_back([&, i] { wrong[i] = serve(sites_[i], calls, &problem[i]); });
    for (auto& t : threads) t.join();
  }

  void both() {
    for (int i = 0; i < 2; ++i) sites_.push_back(site(*two_, i));
    for (Served& s : sites_) {
      const dispatch::CudaDevice::Scope scope(*two_->devices[static_cast<size_t>(s.device)]);
      s.learn();
    }
    for (int i = 0; i < 2; ++i) kernels_.push_back(two_->publish(sites_[static_cast<size_t>(i)].handle, i));
    constexpr int kCalls = 20'000;
    uint64_t wrong[2] = {};
    std::string problem[2];
    serve_both(kCalls, wrong, problem);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // device times are harvested by ticks
    json j{{"kernel", kernels_[0]->name}, {"calls_a_device", kCalls}};
    bool good = kernels_[0] != kernels_[1] &&
                kernels_[0]->cuda_phases[0].function != kernels_[1]->cuda_phases[0].function;
    for (size_t i = 0; i < 2; ++i) {
      const uint64_t served = two_->served(*two_->routes[i]);
      j["device"].push_back({{"served_by_its_kernel", served}, {"wrong", wrong[i]}, {"problem", problem[i]}});
      good = good && wrong[i] == 0 && served == kCalls;
    }
    const json status = json::parse(two_->runtime->status());
    for (const auto& d : status["definitions"])
      if (d.contains("device") && d.contains("calls_per_s"))
        j["telemetry"].push_back(
            {{"device", d["device"]}, {"calls_per_s", d["calls_per_s"]}, {"share", d["share"]}});
    good = good && j.contains("telemetry") && j["telemetry"].size() == 2;
    say("both", good, j);
  }

  void refused() {
    const uint64_t before[] = {two_->served(*two_->routes[0]), two_->served(*two_->routes[1])};
    refused_function = kernels_[1]->cuda_phases[0].function;
    constexpr int kCalls = 2000;
    uint64_t wrong[2] = {};
    std::string problem[2];
    serve_both(kCalls, wrong, problem);
    refused_function = nullptr;
    const uint64_t by_kernel[] = {two_->served(*two_->routes[0]) - before[0],
                                  two_->served(*two_->routes[1]) - before[1]};
    uint64_t after_wrong = serve(sites_[1], 100, &problem[1]);
    const uint64_t again = two_->served(*two_->routes[1]) - before[1];
    say("refused",
        wrong[0] + wrong[1] + after_wrong == 0 && by_kernel[0] == kCalls && refusals.load() == kCalls &&
            again == 100,
        {{"launches_refused_on_1", refusals.load()},
         {"by_kernel_on_0", by_kernel[0]},
         {"wrong", wrong[0] + wrong[1] + after_wrong},
         {"by_kernel_on_1_afterwards", again},
         {"problem", problem[0] + problem[1]}});
  }

  void cost() {
    auto alone = std::make_shared<dispatch::CudaDriver>(*real_driver);
    alone->cuDeviceGetCount = one_device;
    Server one(alone), two(real_driver), two_more(real_driver);
    Server* const servers[] = {&one, &two, &two_more};
    std::vector<Served> sites;
    for (Server* s : servers) {
      sites.push_back(site(*s, 0));
      s->publish(sites.back().handle, 0);
      s->runtime->dispatcher().set_sampling({.time_every = 0, .shadow_every = 0});
    }
    const dispatch::CudaDevice::Scope scope(*two_->devices[0]);
    std::vector<double> ns[3];
    constexpr int kBurst = 30;
    for (int round = 0; round < 1500; ++round)
      for (int k = 0; k < 3; ++k) {
        const auto i = static_cast<size_t>((k + round) % 3);
        const RequestScope request(servers[i]->runtime->dispatcher(),
                                   {.id = 1, .capture = CaptureState::kNone});
        const auto start = Steady::now();
        for (int c = 0; c < kBurst; ++c) must(sites[i].call());
        ns[i].push_back(us_since(start) * 1e3 / kBurst);
        real_driver->cuStreamSynchronize(nullptr);
      }
    // Differences of the same round; their median with an order-statistics interval.
    const auto difference = [&](int a, int b) {
      std::vector<double> d;
      for (size_t r = 0; r < ns[a].size(); ++r) d.push_back(ns[a][r] - ns[b][r]);
      std::sort(d.begin(), d.end());
      const double n = static_cast<double>(d.size()), half = 1.96 * std::sqrt(n) / 2;
      return json{{"ns", d[d.size() / 2]},
                  {"lo", d[static_cast<size_t>(n / 2 - half)]},
                  {"hi", d[static_cast<size_t>(n / 2 + half)]}};
    };
    const json twos = difference(1, 0), same = difference(2, 1);
    // Less than what two Runtimes of one kind differ by.
    say("cost", twos["lo"].get<double>() < 20,
        {{"one_device_call_ns", quantile(ns[0], 0.5)},
         {"two_devices_minus_one", twos},
         {"two_minus_two_other", same},
         {"bursts_each", ns[0].size()}});
  }

  // Last: device 1's context does not come back in this process.
  void lost() {
    const char* text = R"(extern "C" __global__ void k(const __grid_constant__ long long address) {
  *(volatile float*)address = 1.0f;
}
)";
    auto toolchain = must(evolve::CudaToolchain::find({}));
    auto cubin = must(toolchain->compile("fault", text, must(cuda_target(*real_driver, 1)).arch));
    Status on_1;
    {
      const dispatch::CudaDevice::Scope scope(*two_->devices[1]);
      CUfunction f = nullptr;
      CUmodule handle = nullptr;
      must(real_driver->check(real_driver->cuModuleLoadData(&handle, cubin.bytes.data()), "cuModuleLoadData",
                              "fault"));
      must(real_driver->check(real_driver->cuModuleGetFunction(&f, handle, "k"), "cuModuleGetFunction",
                              "fault"));
      long long nowhere = 64;
      void* parameters[] = {&nowhere};
      must(real_driver->check(
          real_driver->cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr), "cuLaunchKernel",
          "fault"));
      (void)real_driver->cuStreamSynchronize(nullptr);
      // Not ATen's: what it would say is an exception.
      on_1 = sites_[1].call();
    }
    std::string problem;
    const uint64_t wrong = serve(sites_[0], 5000, &problem);
    say("lost", on_1.code() == Code::kDevice && wrong == 0 && problem.empty(),
        {{"a_call_on_1", on_1.to_string()}, {"wrong_on_0_afterwards", wrong}, {"problem_on_0", problem}});
  }

  const std::string out_;
  std::unique_ptr<Server> two_;
  std::vector<Served> sites_;
  std::vector<std::shared_ptr<const dispatch::CudaKernel>> kernels_;
  bool fine_ = true;
  json result_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: niche_two_devices_check OUT.json\n"), 2;
  try {
    auto* check = new Check(argv[1]);  // never destroyed: a lost context cannot be taken down
    const int status = check->run();
    std::fflush(stdout);
    ::_Exit(status);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "two_devices_check: %s\n", e.what());
    std::fflush(stdout);
    ::_Exit(1);
  }
}
