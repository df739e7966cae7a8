// niche_probe_check OUT.json [LIBNVRTC]: DeviceProbe on a GPU that serves: what becomes of kernels that hang,
// fault or write where they must not, how long until the driver has let go, and what all this costs the
// requests of the process that serves.
//
// This process serves: a request is some launches of a checked kernel every millisecond, its latency from the
// scheduled arrival. Phases: quiet; a good candidate judged again and again under permits; each plant; and the
// requests after each. The probe's process is this program, started with "probe".
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/cuda/plants.h"
#include "dispatch/devices/cuda/cuda_kernel.h"
#include "evolve/probe/device_probe.h"
#include "evolve/probe/probe_main.h"
#include "evolve/toolchain/cuda_toolchain.h"

namespace {

using namespace niche;
using evolve::ProbeJob;
using json = nlohmann::json;

constexpr int64_t kPeriodNs = 1'000'000;
constexpr int64_t kElements = 1 << 20;
constexpr int kLaunches = 24;  // a request: about a quarter of a millisecond
constexpr int64_t kChecked = 1024;

void die(const std::string& why) {
  std::fprintf(stderr, "probe_check: %s\n", why.c_str());
  std::exit(1);
}
template <typename T>
T must(dispatch::Result<T> r) {
  if (!r.ok()) die(r.status().to_string());
  return std::move(*r);
}

dispatch::CudaLaunchPlan plan() {
  dispatch::CudaLaunchPlan p;
  p.phases = {{"k", {{0, 256}}, 256, 0, 0, 1, false}};
  return p;
}

std::shared_ptr<const dispatch::Definition> twice_definition() {
  auto s = std::make_shared<dispatch::OpSchema>();
  s->op = "twice";
  s->dtypes = {"f32"};
  s->axes.push_back({"n", dispatch::AxisKind::kVar});
  s->args.push_back({"x", dispatch::ArgRole::kIn, "T", {0}});
  s->args.push_back({"y", dispatch::ArgRole::kOut, "T", {0}});
  return must(dispatch::Definition::make(std::move(s), dispatch::kF32, {}));
}

// The requests of a server, one thread.
class Server {
 public:
  Server(const std::shared_ptr<const dispatch::CudaDevice>& device, const std::vector<uint8_t>& cubin,
         const dispatch::Clock& clock)
      : device_(device), call_(device->driver()), clock_(clock) {
    const dispatch::CudaDevice::Scope scope(*device_);
    dispatch::CudaKernelSpec spec;
    spec.name = "twice";
    spec.definition = twice_definition();
    spec.guard.var_count = 1;
    spec.guard.var[0] = {1, int64_t{1} << 30, 1};
    spec.plan = plan();
    kernel_ = must(dispatch::load_cuda_kernel(std::move(spec),
                                              must(dispatch::CudaModule::load(device_, cubin, "twice"))));
    std::vector<float> x(kElements);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 8191) * 0.25F;
    check(call_.cuMemAlloc(&x_, kElements * 4));
    check(call_.cuMemAlloc(&y_, kElements * 4));
    check(call_.cuMemcpyHtoD(x_, x.data(), kElements * 4));
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    stop_.store(true);
    thread_.join();
  }
  evolve::Traffic traffic() const { return {opened_.load(), closed_.load()}; }

  struct Phase {
    int64_t from = 0, requests = 0, wrong = 0;
    std::vector<double> us;
  };
  // Latencies from now on go here.
  void begin(Phase* p) {
    const std::lock_guard lock(mutex_);
    phase_ = p;
    if (p != nullptr) p->from = clock_.now_ns();
  }

 private:
  void check(CUresult r) {
    if (r != CUDA_SUCCESS) die("the server's device call gave " + std::to_string(r));
  }
  bool request() {
    void* p[] = {reinterpret_cast<void*>(x_), reinterpret_cast<void*>(y_)};
    const long n[] = {kElements};
    const NicheKernelArgs args{p, n, nullptr, nullptr, nullptr};
    check(call_.cuMemsetD8(y_, 0xff, kChecked * 4));
    for (int i = 0; i < kLaunches; ++i)
      if (!dispatch::launch_cuda(*kernel_, args, nullptr, device_->own_stream())) return false;
    check(call_.cuStreamSynchronize(device_->own_stream()));
    std::array<float, kChecked> y;
    check(call_.cuMemcpyDtoH(y.data(), y_, sizeof y));
    for (size_t i = 0; i < y.size(); ++i)
      if (y[i] != static_cast<float>(i) * 0.5F) return false;
    return true;
  }
  void serve() {
    const dispatch::CudaDevice::Scope scope(*device_);
    int64_t due = clock_.now_ns();
    while (!stop_.load()) {
      for (int64_t now = clock_.now_ns(); now < due; now = clock_.now_ns())
        if (due - now > 200'000) std::this_thread::sleep_for(std::chrono::nanoseconds(due - now - 150'000));
      opened_.fetch_add(1);
      const bool right = request();
      closed_.fetch_add(1);
      const double us = static_cast<double>(clock_.now_ns() - due) / 1e3;
      {
        const std::lock_guard lock(mutex_);
        if (phase_ != nullptr) {
          ++phase_->requests;
          phase_->wrong += right ? 0 : 1;
          phase_->us.push_back(us);
        }
      }
      due += kPeriodNs;
    }
  }

  std::shared_ptr<const dispatch::CudaDevice> device_;
  const dispatch::CudaDriver& call_;
  const dispatch::Clock& clock_;
  std::shared_ptr<const dispatch::CudaKernel> kernel_;
  CUdeviceptr x_ = 0, y_ = 0;
  std::atomic<uint64_t> opened_{0}, closed_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  Phase* phase_ = nullptr;
  std::thread thread_;
};

json summary(const std::string& name, Server::Phase& p) {
  std::sort(p.us.begin(), p.us.end());
  const auto at = [&](double q) {
    return p.us.empty() ? 0.0 : p.us[static_cast<size_t>(q * static_cast<double>(p.us.size() - 1))];
  };
  json j = {{"phase", name},     {"requests", p.requests}, {"wrong", p.wrong},     {"p50_us", at(0.5)},
            {"p90_us", at(0.9)}, {"p99_us", at(0.99)},     {"p999_us", at(0.999)}, {"max_us", at(1.0)}};
  std::printf("%-28s %6lld requests %lld wrong  p50 %8.1f  p99 %8.1f  p99.9 %8.1f  max %9.1f us\n",
              name.c_str(), static_cast<long long>(p.requests), static_cast<long long>(p.wrong), at(0.5),
              at(0.99), at(0.999), at(1.0));
  std::fflush(stdout);
  return j;
}

ProbeJob job(const bench_cuda::Plant& p, const std::vector<uint8_t>& cubin, int timed) {
  ProbeJob j;
  j.name = "plant." + std::string(p.name);
  j.cubin = cubin;
  j.plan = plan();
  const int64_t n = 100'003;
  j.axes = {n};
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.5F;
  std::vector<uint8_t> bytes(x.size() * 4);
  std::memcpy(bytes.data(), x.data(), bytes.size());
  j.args = {{dispatch::ArgRole::kIn, n * 4, bytes}, {dispatch::ArgRole::kOut, n * 4, {}}};
  j.timed_launches = timed;
  return j;
}

bool right_output(const evolve::ProbeOutcome& o) {
  if (o.outputs.size() != 2) return false;
  std::vector<float> y(o.outputs[1].size() / 4);
  std::memcpy(y.data(), o.outputs[1].data(), o.outputs[1].size());
  for (size_t i = 0; i < y.size(); ++i)
    if (y[i] != static_cast<float>(i)) return false;
  return !y.empty();
}

int run(const char* out_path, const char* nvrtc) {
  const dispatch::SystemClock clock;
  auto toolchain = must(evolve::CudaToolchain::find({.library = nvrtc}));
  auto driver = must(dispatch::CudaDriver::load());
  auto devices = must(dispatch::CudaInfo::discover(*driver));
  if (devices.empty()) die("no CUDA device");
  auto device = must(dispatch::CudaDevice::open(driver, devices[0]));
  std::vector<std::vector<uint8_t>> cubins;
  for (const auto& p : bench_cuda::plants())
    cubins.push_back(
        must(toolchain->compile(p.name, bench_cuda::plant_text(p), device->info().arch())).bytes);

  json result = {
      {"device", device->info().device_class()}, {"phases", json::array()}, {"plants", json::array()}};
  const auto save = [&] { std::ofstream(out_path) << result.dump(1) << '\n'; };
  Server server(device, cubins[0], clock);
  evolve::PermitGate gate({}, clock, [&] { return server.traffic(); });
  evolve::ProbeOptions options;
  options.program = "/proc/self/exe";
  options.args = {"probe"};
  evolve::DeviceProbe probe(options, gate, clock);
  bool as_expected = true;

  const auto phase = [&](const std::string& name, auto&& until) {
    Server::Phase p;
    server.begin(&p);
    until();
    server.begin(nullptr);
    json s = summary(name, p);
    result["phases"].push_back(s);
    as_expected &= p.wrong == 0;
    save();
    return s;
  };
  const auto rest = [&](double seconds) {
    return [seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); };
  };
  std::this_thread::sleep_for(std::chrono::seconds(1));
  phase("quiet", rest(10));
  // The probe's first process starts here: opening a context is no burst of 300 us.
  phase("first probe starts", [&] { (void)probe.run(job(bench_cuda::plants()[0], cubins[0], 1)); });
  int judged = 0;
  phase("good candidate, 1 % duty", [&] {
    const int64_t end = clock.now_ns() + 10'000'000'000;
    while (clock.now_ns() < end) {
      const auto o = probe.run(job(bench_cuda::plants()[0], cubins[0], 60));
      judged += o.end == evolve::ProbeEnd::kRan && right_output(o) ? 1 : 0;
    }
  });
  result["judged_in_10_s"] = judged;
  for (size_t i = 1; i < bench_cuda::plants().size(); ++i) {
    const auto& p = bench_cuda::plants()[i];
    evolve::ProbeOutcome o;
    double ms = 0;
    phase("plant " + std::string(p.name), [&] {
      const int64_t from = clock.now_ns();
      o = probe.run(job(p, cubins[i], 0));
      ms = static_cast<double>(clock.now_ns() - from) / 1e6;
    });
    const bool good = p.expected == evolve::probe_end_name(o.end) ||
                      (p.expected == "fault" && o.end == evolve::ProbeEnd::kHung);
    as_expected &= good;
    std::printf("  %s%s after %.1f ms, killed and gone in %.1f ms: %s\n", good ? "" : "UNEXPECTED ",
                evolve::probe_end_name(o.end), ms, o.kill_ms, o.text.c_str());
    result["plants"].push_back({{"name", p.name},
                                {"end", evolve::probe_end_name(o.end)},
                                {"expected", p.expected},
                                {"text", o.text},
                                {"ms", ms},
                                {"kill_ms", o.kill_ms}});
    // A harmful candidate's requests are over; the next ten thousand, for the two that the issue names.
    phase("after " + std::string(p.name), rest(p.name == "hangs" || p.name == "faults" ? 10 : 1));
  }
  const auto again = probe.run(job(bench_cuda::plants()[0], cubins[0], 5));
  as_expected &= again.end == evolve::ProbeEnd::kRan && right_output(again);
  const auto c = gate.counts();
  result["gate"] = {{"granted", c.granted},
                    {"busy", c.busy},
                    {"throttled", c.throttled},
                    {"revoked", c.revoked},
                    {"overrun", c.overrun},
                    {"disturbed", c.disturbed},
                    {"used_ms", static_cast<double>(c.used_ns) / 1e6}};
  result["as_expected"] = as_expected;
  save();
  std::printf("gate: %s\n%s\n", result["gate"].dump().c_str(),
              as_expected ? "all as expected" : "NOT as expected");
  return as_expected ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "probe") == 0)
    return evolve::probe_main({[] { return dispatch::CudaDriver::load(); }});
  if (argc < 2) die("usage: niche_probe_check OUT.json [LIBNVRTC]");
  return run(argv[1], argc > 2 ? argv[2] : "");
}
