// niche_elsewhere_check OUTDIR [SECONDS]: what tuning costs a server's latency: not at all, on the device that serves,
// and on another one. One process: a Runtime that serves requests of fixed kernels on GPU 0, one a millisecond, and two
// that are tuned, which see a few calls of each request: one with tuning_device = "idle" (its sessions should find
// GPU 1 by themselves), one with "same". Windows of two seconds in the order none, idle, same, same, idle, none; what is
// compared is the p99 of latency from the schedule, within each group of six.
//
// OUTDIR/elsewhere.json has all windows, OUTDIR/events_*.txt what the Runtimes said.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/cuda/two_gpus/serving.h"
#include "dispatch/devices/cuda/cuda_device.h"
#include "runtime/cuda/cuda.h"
#include "runtime/torch/cuda_forms.h"
#include "runtime/torch/torch.h"
#include "runtime/torch/worker.h"

namespace {

using namespace niche;
using namespace niche::two_gpus;
using json = nlohmann::json;

enum Mode : uint8_t { kNone, kIdle, kSame, kModes };
constexpr const char* kNames[] = {"none", "idle", "same"};

class Check {
 public:
  Check(std::string out, double seconds) : out_(std::move(out)), seconds_(seconds) {
    std::filesystem::create_directories(out_);
    must(open_torch_cuda());
    driver_ = must(dispatch::CudaDriver::load());
    RuntimeConfig c = torch_config();
    c.evolve = false;
    must(enable_cuda(&c, driver_));
    if (c.cuda_devices < 2) throw std::runtime_error("this machine has fewer than two CUDA devices");
    server_ = must(Runtime::create(std::move(c)));
    for (const Mode m : {kIdle, kSame}) tuned_[m] = tuned(m);
    device_ = must(dispatch::CudaDevice::open(driver_, must(dispatch::CudaInfo::discover(*driver_))[0]));
  }

  int run() {
    const dispatch::CudaDevice::Scope scope(*device_);
    for (int i = 0; i < 3; ++i) serving_.push_back(norm(*server_, 4096, 1024));
    for (const Mode m : {kIdle, kSame}) {
      // Enough Definitions that one is always due.
      for (const int64_t n : {4096, 2048, 1024, 3072, 5120, 6144})
        seen_[m].push_back(norm(*tuned_[m], n, 256));
      for (const int64_t n : {4096, 2048, 3000, 5000}) {
        seen_[m].emplace_back(
            "silu_mul", must(tuned_[m]->op("silu_mul", kBf16, {{"N", n}})), 0,
            std::vector<at::Tensor>{random({256, n}, 0), random({256, n}, 0), blank({256, n}, 0)});
      }
    }
    // Hot before anything is measured, so that sessions come when they are let.
    window(kNone, 3, false);
    for (const Mode m : {kIdle, kSame}) warm_up(m);
    const auto start = Steady::now();
    std::vector<std::array<std::vector<double>, kModes>> groups;
    while (us_since(start) / 1e6 + 12 < seconds_ || groups.size() < 2) {
      std::array<std::vector<double>, kModes> group;
      for (const Mode m : {kNone, kIdle, kSame, kSame, kIdle, kNone}) group[m].push_back(window(m, 2, true));
      groups.push_back(std::move(group));
      compare(groups);
    }
    result_["session_text"] = tuned_[kIdle]->explain(seen_[kIdle][0].handle, {{"M", 256}})->session;
    for (const Mode m : {kIdle, kSame}) {
      result_["where"][kNames[m]] = events_[m]->first("session started");
      result_["sessions"][kNames[m]] = {{"started", events_[m]->count("session started")},
                                        {"failed", events_[m]->count("session failed")},
                                        {"kernels_verified", events_[m]->count("kernel verified")}};
    }
    compare(groups);
    const bool chosen = events_[kIdle]->first("session started").find("cuda:1 idle") != std::string::npos;
    std::printf("idle: %s\nsame: %s\n", events_[kIdle]->first("session started").c_str(),
                events_[kSame]->first("session started").c_str());
    std::printf("explain: %s\n", result_["session_text"].get<std::string>().c_str());
    return chosen ? 0 : 1;
  }

 private:
  std::unique_ptr<Runtime> tuned(Mode m) {
    events_[m] = std::make_shared<Events>(out_ + "/events_" + kNames[m] + ".txt");
    RuntimeConfig c = torch_config();
    c.cache_dir = "/tmp/niche_elsewhere_" + std::string(kNames[m]);
    std::filesystem::remove_all(c.cache_dir);
    std::filesystem::create_directories(c.cache_dir);
    c.tuning_device = kNames[m];
    c.worker_program = "/proc/self/exe";
    c.worker_args = {"worker"};
    c.session_seconds_max = 60;
    c.session_evaluations_max = 400;
    c.session_cpu_share = 8;
    c.session_gap_seconds = 0;
    c.hot_share_min = 1e-5;
    c.p99_slack = 100;  // what it would hold sessions back for is measured here
    c.time_one_in = 4;
    c.log = events_[m];
    must(enable_cuda(&c, driver_));
    auto runtime = must(Runtime::create(std::move(c)));
    runtime->pause_evolution(true);
    return runtime;
  }
  Served norm(Runtime& r, int64_t n, int64_t m) {
    return Served("rms_norm", must(r.op("rms_norm", kBf16, {{"N", n}}, {{"eps", 1e-6}})), 0,
                  {random({m, n}, 0), random({n}, 0, 0.1, 1), blank({m, n}, 0)});
  }

  void allow(Mode m) {
    for (const Mode t : {kIdle, kSame}) tuned_[t]->pause_evolution(t != m);
  }
  void warm_up(Mode m) {
    allow(m);
    const auto start = Steady::now();
    while (tuned_[m]->sessions_running() == 0 && us_since(start) < 20e6) (void)window(m, 0.5, false);
    allow(kNone);
  }
  // Returns the p99 of latency, in us.
  double window(Mode m, double seconds, bool counts) {
    allow(m);
    std::vector<double> us;
    int64_t running = 0;
    auto due = Steady::now() + std::chrono::microseconds(1000);
    const auto start = due;
    // The first fifth is for the switch: its requests are served and not counted.
    while (us_since(start) < seconds * 1.2e6) {
      std::this_thread::sleep_until(due - std::chrono::microseconds(60));
      while (Steady::now() < due) {
      }
      {
        const uint64_t id = ++request_;
        const RequestScope a(server_->dispatcher(), {.id = id, .capture = CaptureState::kNone});
        const RequestScope b(tuned_[kIdle]->dispatcher(), {.id = id, .capture = CaptureState::kNone});
        const RequestScope c(tuned_[kSame]->dispatcher(), {.id = id, .capture = CaptureState::kNone});
        for (int i = 0; i < 2; ++i)
          for (Served& s : serving_) must(s.call());
        // One call of each tuned Runtime, the operators in turn.
        for (const Mode t : {kIdle, kSame}) must(seen_[t][id % seen_[t].size()].call());
        driver_->cuStreamSynchronize(nullptr);
      }
      if (us_since(start) > seconds * 0.2e6) {
        us.push_back(us_since(due));
        running += m == kNone ? 0 : tuned_[m]->sessions_running();
      }
      due += std::chrono::microseconds(1000);
      // A request that came too late does not make all that follow late: what is measured is a device, not a backlog.
      if (const auto now = Steady::now(); due < now) due = now + std::chrono::microseconds(200);
    }
    const double active = us.empty() ? 0 : static_cast<double>(running) / static_cast<double>(us.size());
    const double p99 = quantile(us, 0.99), p50 = quantile(us, 0.5);
    if (counts) {
      result_["windows"].push_back({{"mode", kNames[m]},
                                    {"requests", us.size()},
                                    {"p50_us", p50},
                                    {"p99_us", p99},
                                    {"max_us", quantile(us, 1)},
                                    {"sessions_running", active}});
      std::printf("%-5s p50 %7.1f p99 %7.1f us, sessions ran %3.0f %%\n", kNames[m], p50, p99, active * 100);
      std::fflush(stdout);
    }
    return p99;
  }

  // Ratio of p99 to that without tuning in the same group; mean of logarithms, 95 % by Student's t.
  void compare(const std::vector<std::array<std::vector<double>, kModes>>& groups) {
    static constexpr double kT[] = {0,     12.71, 4.303, 3.182, 2.776, 2.571, 2.447,
                                    2.365, 2.306, 2.262, 2.228, 2.201, 2.179};
    const auto mean = [](const std::vector<double>& v) {
      double s = 0;
      for (const double x : v) s += x;
      return s / static_cast<double>(v.size());
    };
    for (const Mode m : {kIdle, kSame}) {
      std::vector<double> logs;
      for (const auto& g : groups) logs.push_back(std::log(mean(g[m]) / mean(g[kNone])));
      const double n = static_cast<double>(logs.size()), middle = mean(logs);
      double square = 0;
      for (const double l : logs) square += (l - middle) * (l - middle);
      const double t = groups.size() <= 12 ? kT[std::max<size_t>(1, groups.size() - 1)] : 2.1;
      const double half = n > 1 ? t * std::sqrt(square / (n - 1) / n) : NAN;
      result_["p99_over_none"][kNames[m]] = {{"ratio", std::exp(middle)},
                                             {"lo", std::exp(middle - half)},
                                             {"hi", std::exp(middle + half)},
                                             {"groups", groups.size()}};
      std::printf("  p99, tuning %s / none: %.3f [%.3f, %.3f], %zu groups\n", kNames[m], std::exp(middle),
                  std::exp(middle - half), std::exp(middle + half), groups.size());
    }
    std::fflush(stdout);
    std::ofstream(out_ + "/elsewhere.json") << result_.dump(1) << '\n';
  }

  const std::string out_;
  const double seconds_;
  std::shared_ptr<const dispatch::CudaDriver> driver_;
  std::shared_ptr<const dispatch::CudaDevice> device_;
  std::unique_ptr<Runtime> server_;
  std::shared_ptr<Events> events_[kModes];
  std::unique_ptr<Runtime> tuned_[kModes];
  std::vector<Served> serving_, seen_[kModes];
  uint64_t request_ = 0;
  json result_;
};

}  // namespace

int main(int argc, char** argv) {
  if (niche::is_worker(argc, argv)) return niche::worker_main(argc, argv);
  if (argc < 2) return std::fprintf(stderr, "usage: niche_elsewhere_check OUTDIR [SECONDS]\n"), 2;
  try {
    return Check(argv[1], argc > 2 ? std::atof(argv[2]) : 100).run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "elsewhere_check: %s\n", e.what());
    return 1;
  }
}
