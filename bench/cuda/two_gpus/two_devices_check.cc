// niche_two_devices_check OUT.json: one Runtime over two GPUs. Kernels come from a cache (stocked_cache.h), as after a
// restart: one record, loaded once a device.
//   both    threads serve both devices at once: answers, who gave them, device times and modules a device; nothing of one
//           device's is the other's
//   refused launches on device 1 are refused for a while: its library answers, device 0 goes on by its kernels
//   cost    a call on device 0 of Runtimes that know one device, and of such that know two, in turns
//   lost    launches on device 1 say that its context is lost: calls there say kDevice and name the kernel; device 0 goes on
//   fault   a kernel writes outside of all memory on device 1. What the driver says of device 0 afterwards is asked of it
//           itself: where it takes that one down as well, niche's calls must say so, and where it does not, go on
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/cuda/two_gpus/serving.h"
#include "bench/cuda/two_gpus/stocked_cache.h"
#include "dispatch/devices/cuda/cuda_kernel.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "runtime/cuda/cuda.h"
#include "runtime/torch/cuda_forms.h"
#include "runtime/torch/torch.h"

namespace {

using namespace niche;
using namespace niche::two_gpus;
using json = nlohmann::json;

// Driver calls that this check bends: launches of niche's fail on one device; one device is all that there is.
std::shared_ptr<const dispatch::CudaDriver> real_driver;
thread_local CUresult says = CUDA_SUCCESS;  // what launches end with; a thread serves one device
std::atomic<uint64_t> failures{0};

bool fails() {
  if (says != CUDA_SUCCESS) failures.fetch_add(1, std::memory_order_relaxed);
  return says != CUDA_SUCCESS;
}
CUresult launch_or_fail(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void** parameters, void** extra) {
  if (fails()) return says;
  return real_driver->cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
CUresult launch_ex_or_fail(const CUlaunchConfig* config, CUfunction f, void** parameters, void** extra) {
  if (fails()) return says;
  return real_driver->cuLaunchKernelEx(config, f, parameters, extra);
}
CUresult one_device(int* n) {
  *n = 1;
  return CUDA_SUCCESS;
}

constexpr int64_t kColumns = 4096;
OpHandle norm(Runtime& r) { return must(r.op("rms_norm", kBf16, {{"N", kColumns}}, {{"eps", 1e-6}})); }

// A Runtime of its own cache, in which there is a kernel of rms_norm.
struct Server {
  Server(const std::string& name, std::shared_ptr<const dispatch::CudaDriver> driver) {
    config = torch_config();
    config.evolve = false;
    config.time_one_in = 16;
    must(enable_cuda(&config, driver));
    auto library = must(Runtime::create(config));
    config.cache_dir = "/tmp/niche_two_devices_" + name;
    stock_cache(config, *driver, {norm(*library).state()->definition()});
    runtime = must(Runtime::create(config));
    for (int i = 0; i < config.cuda_devices; ++i)
      devices.push_back(must(dispatch::CudaDevice::open(
          driver, must(dispatch::CudaInfo::discover(*driver))[static_cast<size_t>(i)])));
  }
  // What serves calls like these; null: the library.
  std::shared_ptr<const dispatch::CudaKernel> kernel_of(const Served& s) const {
    dispatch::WideProblem p{s.handle.state()->site(s.device + 1).prefix(), {}, {s.tensors[0].size(0)}};
    uintptr_t ored = 0;
    for (const at::Tensor& t : s.tensors) ored |= reinterpret_cast<uintptr_t>(t.data_ptr());
    p.layout = dispatch::LayoutClass::plain_at(ored);
    const auto route = runtime->dispatcher().publisher().find(p);
    if (route == nullptr || route->incumbent() == nullptr ||
        route->incumbent()->kind != dispatch::KernelKind::kCuda)
      return nullptr;
    return std::static_pointer_cast<const dispatch::CudaKernel>(route->incumbent());
  }
  // Calls of the calling thread that kernels answered.
  uint64_t served() const {
    const dispatch::RouteCounts c = runtime->dispatcher().thread_counts();
    return c.by_rung[static_cast<int>(dispatch::Rung::kExact)] +
           c.by_rung[static_cast<int>(dispatch::Rung::kRegion)];
  }

  RuntimeConfig config;
  std::unique_ptr<Runtime> runtime;
  std::vector<std::shared_ptr<const dispatch::CudaDevice>> devices;
};

struct Outcome {
  uint64_t by_kernel = 0, wrong = 0;  // answers that differ, or statuses not ok
  std::string problem;
  json told() const { return {{"served_by_its_kernel", by_kernel}, {"wrong", wrong}, {"problem", problem}}; }
};

class Check {
 public:
  explicit Check(std::string out) : out_(std::move(out)) {
    must(open_torch_cuda());
    real_driver = must(dispatch::CudaDriver::load());
    const auto found = must(dispatch::CudaInfo::discover(*real_driver));
    if (found.size() < 2) throw std::runtime_error("this machine has fewer than two CUDA devices");
    for (const auto& info : found) result_["devices"].push_back(info.device_class());
    auto bent = std::make_shared<dispatch::CudaDriver>(*real_driver);
    bent->cuLaunchKernel = launch_or_fail;
    bent->cuLaunchKernelEx = launch_ex_or_fail;
    two_ = std::make_unique<Server>("both", bent);
  }

  int run() {
    both();
    refused();
    cost();
    lost();
    fault();
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
  static Served site(Server& s, int ordinal, int64_t rows) {
    return Served("rms_norm on " + std::to_string(ordinal), norm(*s.runtime), ordinal,
                  {random({rows, kColumns}, ordinal), random({kColumns}, ordinal, 0.1, 1),
                   blank({rows, kColumns}, ordinal)});
  }
  const dispatch::CudaDevice& device(int ordinal) const {
    return *two_->devices[static_cast<size_t>(ordinal)];
  }
  // On its own device, whose context is current there. Each 50th answer is compared.
  Outcome serve(Served& s, int calls) {
    const dispatch::CudaDevice::Scope scope(device(s.device));
    Outcome o;
    const uint64_t before = two_->served();
    for (int i = 0; i < calls; ++i) {
      if (const Status status = s.call(); !status.ok()) {
        o.problem = status.to_string();
        ++o.wrong;
        continue;
      }
      if (i % 50 != 0) continue;
      o.wrong += !s.right();
      s.tensors.back().fill_(NAN);
    }
    o.by_kernel = two_->served() - before;
    return o;
  }
  // Both devices at once, a thread each.
  std::array<Outcome, 2> serve_both(int calls, CUresult says_on_1) {
    std::array<Outcome, 2> outcomes;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i)
      threads.emplace_back([&, i] {
        says = i == 1 ? says_on_1 : CUDA_SUCCESS;
        outcomes[i] = serve(sites_[i], calls);
      });
    for (auto& t : threads) t.join();
    return outcomes;
  }

  void both() {
    for (int i = 0; i < 2; ++i) sites_.push_back(site(*two_, i, 256));
    must(two_->runtime->force("fallback"));
    for (Served& s : sites_) {
      const dispatch::CudaDevice::Scope scope(device(s.device));
      s.learn();
    }
    must(two_->runtime->force(""));
    constexpr uint64_t kCalls = 20'000;
    const auto outcomes = serve_both(kCalls, CUDA_SUCCESS);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // device times are harvested by ticks
    json j{{"calls_a_device", kCalls}};
    bool good = true;
    std::shared_ptr<const dispatch::CudaKernel> kernels[2];
    for (size_t i = 0; i < 2; ++i) {
      kernels[i] = two_->kernel_of(sites_[i]);
      j["device"].push_back(outcomes[i].told());
      j["kernel"].push_back(kernels[i] != nullptr ? kernels[i]->name : "the library");
      good = good && kernels[i] != nullptr && outcomes[i].wrong == 0 && outcomes[i].by_kernel == kCalls;
    }
    j["modules_differ"] = good && kernels[0]->cuda_phases[0].function != kernels[1]->cuda_phases[0].function;
    const json status = json::parse(two_->runtime->status());
    for (const auto& d : status["definitions"])
      if (d.contains("device") && d.contains("calls_per_s"))
        j["telemetry"].push_back(
            {{"device", d["device"]}, {"calls_per_s", d["calls_per_s"]}, {"share", d["share"]}});
    good = good && j["modules_differ"] && j.contains("telemetry") && j["telemetry"].size() == 2;
    say("both", good, j);
  }

  void refused() {
    constexpr uint64_t kCalls = 2000, kAfter = 100;
    const auto outcomes = serve_both(kCalls, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    const uint64_t refused = failures.exchange(0);
    const Outcome after = serve(sites_[1], kAfter);
    say("refused",
        outcomes[0].wrong + outcomes[1].wrong + after.wrong == 0 && outcomes[0].by_kernel == kCalls &&
            outcomes[1].by_kernel == 0 && refused == kCalls && after.by_kernel == kAfter,
        {{"launches_refused_on_1", refused},
         {"on_0_meanwhile", outcomes[0].told()},
         {"on_1_meanwhile", outcomes[1].told()},
         {"on_1_afterwards", after.told()}});
  }

  // Bursts of each Runtime in turn; what is compared is of the same round. Two Runtimes of each kind: what two of one kind
  // differ by is what this cannot tell apart.
  void cost() {
    auto alone = std::make_shared<dispatch::CudaDriver>(*real_driver);
    alone->cuDeviceGetCount = one_device;
    Server one("one", alone), two("two", real_driver), one_more("one_more", alone),
        two_more("two_more", real_driver);
    std::array<Server*, 4> servers{&one, &two, &one_more, &two_more};
    std::vector<Served> sites;
    std::array<uint64_t, 4> by_kernel{};
    for (Server* s : servers) {
      sites.push_back(site(*s, 0, 16));
      s->runtime->dispatcher().set_sampling({.time_every = 0, .shadow_every = 0});
    }
    const dispatch::CudaDevice::Scope scope(device(0));
    const std::vector<int> cpus = cpus_of_process();
    pin({cpus.back()});
    constexpr int kBurst = 30, kRounds = 20'000, kWarm = 500;
    std::array<std::vector<double>, 4> ns;
    for (int round = 0; round < kWarm + kRounds; ++round)
      for (int k = 0; k < 4; ++k) {
        const auto i = static_cast<size_t>((k + round) % 4);
        if (round == kWarm) by_kernel[i] = servers[i]->served();
        const RequestScope request(servers[i]->runtime->dispatcher(),
                                   {.id = 1, .capture = CaptureState::kNone});
        const auto start = Steady::now();
        for (int c = 0; c < kBurst; ++c) must(sites[i].call());
        if (round >= kWarm) ns[i].push_back(us_since(start) * 1e3 / kBurst);
        real_driver->cuStreamSynchronize(nullptr);
      }
    bool all_by_kernels = true;
    for (size_t i = 0; i < 4; ++i)
      all_by_kernels &= servers[i]->served() - by_kernel[i] == uint64_t{kBurst} * kRounds;
    pin(cpus);
    // Median of the rounds' values with an order-statistics interval.
    const auto middle = [&](auto&& of_round) {
      std::vector<double> d;
      for (size_t r = 0; r < ns[0].size(); ++r) d.push_back(of_round(r));
      std::sort(d.begin(), d.end());
      const double n = static_cast<double>(d.size()), half = 1.96 * std::sqrt(n) / 2;
      return json{{"ns", d[d.size() / 2]},
                  {"lo", d[static_cast<size_t>(n / 2 - half)]},
                  {"hi", d[static_cast<size_t>(n / 2 + half)]}};
    };
    const json more = middle([&](size_t r) { return (ns[1][r] + ns[3][r] - ns[0][r] - ns[2][r]) / 2; });
    const json ones = middle([&](size_t r) { return ns[2][r] - ns[0][r]; });
    const json twos = middle([&](size_t r) { return ns[3][r] - ns[1][r]; });
    const double same = std::max(std::abs(ones["ns"].get<double>()), std::abs(twos["ns"].get<double>()));
    say("cost", all_by_kernels && more["lo"].get<double>() <= std::max(5.0, same),
        {{"one_device_call_ns", quantile(ns[0], 0.5)},
         {"two_devices_minus_one", more},
         {"one_minus_other_one", ones},
         {"two_minus_other_two", twos},
         {"all_by_kernels", all_by_kernels},
         {"calls_a_burst", kBurst},
         {"bursts_each", ns[0].size()}});
  }

  void lost() {
    constexpr uint64_t kCalls = 2000;
    const auto outcomes = serve_both(kCalls, CUDA_ERROR_ILLEGAL_ADDRESS);
    const uint64_t said = failures.exchange(0);
    const bool named =
        outcomes[1].problem.find("kernel " + two_->kernel_of(sites_[0])->name) != std::string::npos &&
        outcomes[1].problem.find("context is lost") != std::string::npos;
    say("lost",
        said > 0 && named && outcomes[1].wrong == kCalls && outcomes[0].wrong == 0 &&
            outcomes[0].by_kernel == kCalls,
        {{"calls_on_1", kCalls},
         {"statuses_on_1_not_ok", outcomes[1].wrong},
         {"a_call_on_1", outcomes[1].problem},
         {"on_0_meanwhile", outcomes[0].told()}});
  }

  // Last: device 1's context does not come back in this process. No ATen from here on, which would throw.
  void fault() {
    const char* text = R"(extern "C" __global__ void k(const __grid_constant__ long long address) {
  *(volatile float*)address = 1.0f;
}
)";
    auto toolchain = must(evolve::CudaToolchain::find({}));
    auto cubin = must(toolchain->compile("fault", text, must(cuda_target(*real_driver, 1)).arch));
    const auto driver = [](CUresult r, const char* call) { must(real_driver->check(r, call, "fault")); };
    at::Tensor& answer = sites_[0].tensors.back();
    const auto bytes = static_cast<size_t>(answer.nbytes());
    const auto address = reinterpret_cast<CUdeviceptr>(answer.data_ptr());
    std::vector<char> want(bytes), got(bytes);
    const auto answer_of_0 = [&](std::vector<char>* to) {
      driver(real_driver->cuMemsetD8(address, 0xff, bytes), "cuMemsetD8");
      must(sites_[0].call());
      driver(real_driver->cuStreamSynchronize(nullptr), "cuStreamSynchronize");
      driver(real_driver->cuMemcpyDtoH(to->data(), address, bytes), "cuMemcpyDtoH");
    };
    {
      const dispatch::CudaDevice::Scope scope(device(0));
      answer_of_0(&want);
    }
    Status on_1;
    int driver_on_1 = 0, driver_on_0 = 0;
    {
      const dispatch::CudaDevice::Scope scope(device(1));
      CUfunction f = nullptr;
      CUmodule handle = nullptr;
      driver(real_driver->cuModuleLoadData(&handle, cubin.bytes.data()), "cuModuleLoadData");
      driver(real_driver->cuModuleGetFunction(&f, handle, "k"), "cuModuleGetFunction");
      long long nowhere = 64;
      void* parameters[] = {&nowhere};
      driver(real_driver->cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
             "cuLaunchKernel");
      driver_on_1 = static_cast<int>(real_driver->cuStreamSynchronize(nullptr));
      on_1 = sites_[1].call();
    }
    constexpr int kCalls = 100;
    Outcome o;
    Status on_0;
    {
      const dispatch::CudaDevice::Scope scope(device(0));
      driver_on_0 = static_cast<int>(real_driver->cuMemsetD8(address, 0xff, bytes));
      const uint64_t before = two_->served();
      try {
        for (int i = 0; i < kCalls && (on_0 = sites_[0].call()).ok(); ++i) {
          answer_of_0(&got);
          o.wrong += got != want;
        }
      } catch (const std::exception& e) {
        o.problem = e.what();
      }
      o.by_kernel = two_->served() - before;
    }
    const bool as_the_driver_says = driver_on_0 == 0
                                        ? on_0.ok() && o.problem.empty() && o.by_kernel == 2 * kCalls
                                        : on_0.code() == Code::kDevice;
    say("fault", driver_on_1 != 0 && on_1.code() == Code::kDevice && o.wrong == 0 && as_the_driver_says,
        {{"driver_error_on_1", driver_on_1},
         {"driver_error_on_0", driver_on_0},
         {"a_call_on_1", on_1.to_string()},
         {"a_call_on_0", on_0.to_string()},
         {"on_0_afterwards", o.told()}});
  }

  const std::string out_;
  std::unique_ptr<Server> two_;
  std::vector<Served> sites_;
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
