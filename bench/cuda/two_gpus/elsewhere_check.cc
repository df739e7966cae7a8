// niche_elsewhere_check OUTDIR [SECONDS]: what tuning costs a server's latency: on the device that serves, and on another
// one. One process: a Runtime that answers requests by fixed kernels on GPU 0, and two that are tuned, which see a few
// calls between the requests: one with tuning_device = "idle" (its sessions should find GPU 1 by themselves), one with
// "same".
//
// Requests come every 400 us, which is three to four times what one takes, to a thread that has a CPU of its own and never
// sleeps; everything else of the process, workers too, has the other cores. Windows of 0.8 s, each after 0.25 s that do not
// count, in quads: none idle idle none, and every eighth none same same none. A quad gives one logarithm of a ratio, in
// which what drifts evenly cancels; their mean has an interval by Student's t. Beside it the quantiles of all requests of
// these quads together, with a bootstrap over quads.
//
// A window's p99 of 2,000 requests has a standard error of 5 to 10 % of itself (from the windows of an earlier run: 7 % quiet,
// 14 % with tuning elsewhere), so that 3 % takes some forty quads.
//
// OUTDIR/elsewhere.json has all windows, OUTDIR/latency.u16 each window's requests in turn, in units of 0.1 us (the windows
// say how many), OUTDIR/events_*.txt what the Runtimes said.
#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "bench/cuda/two_gpus/serving.h"
#include "bench/cuda/two_gpus/stocked_cache.h"
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

struct Window {
  std::vector<double> us;  // in the order of the requests
  double sessions = 0;     // that ran, on average
  double p(double q) const {
    std::vector<double> copy = us;
    return quantile(copy, q);
  }
};
// none, the mode, the mode, none.
using Quad = std::array<Window, 4>;

class Check {
 public:
  Check(std::string out, double seconds) : out_(std::move(out)), seconds_(seconds), cpus_(cpus_of_process()) {
    if (cpus_.size() < 4) throw std::runtime_error("fewer than four CPUs: the server would share its own");
    std::filesystem::create_directories(out_);
    latency_.open(out_ + "/latency.u16", std::ios::binary);
    // What is started from here on leaves the first core, with all of its threads, to the thread that serves.
    std::vector<int> others = cpus_;
    const std::vector<int> core = siblings(cpus_[0]);
    std::erase_if(others, [&](int cpu) { return std::find(core.begin(), core.end(), cpu) != core.end(); });
    pin(others);
    must(open_torch_cuda());
    driver_ = must(dispatch::CudaDriver::load());
    RuntimeConfig c = torch_config();
    c.evolve = false;
    must(enable_cuda(&c, driver_));
    if (c.cuda_devices < 2) throw std::runtime_error("this machine has fewer than two CUDA devices");
    {
      auto library = must(Runtime::create(c));
      c.cache_dir = "/tmp/niche_elsewhere_server";
      stock_cache(c, *driver_, {norm_handle(*library, kServedColumns).state()->definition()});
    }
    server_ = must(Runtime::create(std::move(c)));
    for (const Mode m : {kIdle, kSame}) tuned_[m] = tuned(m);
    device_ = must(dispatch::CudaDevice::open(driver_, must(dispatch::CudaInfo::discover(*driver_))[0]));
  }

  int run() {
    const dispatch::CudaDevice::Scope scope(*device_);
    for (int i = 0; i < 6; ++i) serving_.push_back(norm(*server_, kServedColumns, 1024));
    for (const Mode m : {kIdle, kSame}) {
      // Enough Definitions that one is always due.
      for (int64_t n = 1024; n <= 8192; n += 512) seen_[m].push_back(norm(*tuned_[m], n, 256));
      for (int64_t n = 1000; n <= 8000; n += 1000)
        seen_[m].emplace_back(
            "silu_mul", must(tuned_[m]->op("silu_mul", kBf16, {{"N", n}})), 0,
            std::vector<at::Tensor>{random({256, n}, 0), random({256, n}, 0), blank({256, n}, 0)});
    }
    pin({cpus_[0]});
    // Hot before anything is measured, so that sessions come when they are let.
    const auto start = Steady::now();
    (void)window(kNone, 3);
    for (const Mode m : {kIdle, kSame}) warm_up(m);
    const uint64_t by_kernel = served(), requests = request_;
    std::array<std::vector<Quad>, kModes> quads;
    for (int n = 0; us_since(start) / 1e6 + 4.5 < seconds_ || n < 8; ++n) {
      const Mode m = n % 8 == 3 ? kSame : kIdle;
      Quad q;
      size_t at = 0;
      for (const Mode w : {kNone, m, m, kNone}) {
        q[at] = window(w, kWindowSeconds);
        note(w, q[at++], n);
      }
      quads[m].push_back(std::move(q));
      if (n % 8 == 7) compare(quads, false);
    }
    const uint64_t expected = (request_ - requests) * serving_.size();
    result_["calls"] = expected;
    result_["calls_by_kernels"] = served() - by_kernel;
    result_["session_text"] = tuned_[kIdle]->explain(seen_[kIdle][0].handle, {{"M", 256}})->session;
    for (const Mode m : {kIdle, kSame}) {
      result_["where"][kNames[m]] = events_[m]->first("session started");
      result_["sessions"][kNames[m]] = {{"started", events_[m]->count("session started")},
                                        {"failed", events_[m]->count("session failed")},
                                        {"kernels_verified", events_[m]->count("kernel verified")}};
    }
    compare(quads, true);
    const bool chosen = events_[kIdle]->first("session started").find("cuda:1 idle") != std::string::npos;
    std::printf("idle: %s\nsame: %s\n", events_[kIdle]->first("session started").c_str(),
                events_[kSame]->first("session started").c_str());
    std::printf("explain: %s\n", result_["session_text"].get<std::string>().c_str());
    return chosen && served() - by_kernel == expected ? 0 : 1;
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
    c.session_evaluations_max = 4000;
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
  static OpHandle norm_handle(Runtime& r, int64_t n) {
    return must(r.op("rms_norm", kBf16, {{"N", n}}, {{"eps", 1e-6}}));
  }
  static Served norm(Runtime& r, int64_t n, int64_t m) {
    return Served("rms_norm", norm_handle(r, n), 0,
                  {random({m, n}, 0), random({n}, 0, 0.1, 1), blank({m, n}, 0)});
  }
  // The server's calls on this thread that its kernels answered.
  uint64_t served() {
    const dispatch::RouteCounts c = server_->dispatcher().thread_counts();
    return c.by_rung[static_cast<int>(dispatch::Rung::kExact)] +
           c.by_rung[static_cast<int>(dispatch::Rung::kRegion)];
  }

  void allow(Mode m) {
    for (const Mode t : {kIdle, kSame}) tuned_[t]->pause_evolution(t != m);
  }
  void warm_up(Mode m) {
    allow(m);
    const auto start = Steady::now();
    while (tuned_[m]->sessions_running() == 0 && us_since(start) < 20e6) (void)window(m, 0.5);
    allow(kNone);
  }
  void answer(uint64_t id) {
    // The tuned Runtimes know of the request: between requests is when they may use its device.
    const RequestScope a(server_->dispatcher(), {.id = id, .capture = CaptureState::kNone});
    const RequestScope b(tuned_[kIdle]->dispatcher(), {.id = id, .capture = CaptureState::kNone});
    const RequestScope c(tuned_[kSame]->dispatcher(), {.id = id, .capture = CaptureState::kNone});
    for (Served& s : serving_) must(s.call());
    driver_->cuStreamSynchronize(nullptr);
  }
  // One call of each tuned Runtime, the operators in turn: what makes them hot. Their library gives way to kernels as the run
  // goes on, so they are no part of what is timed.
  void show(uint64_t id) {
    for (const Mode t : {kIdle, kSame}) {
      const RequestScope scope(tuned_[t]->dispatcher(), {.id = id, .capture = CaptureState::kNone});
      must(seen_[t][id % seen_[t].size()].call());
    }
    driver_->cuStreamSynchronize(nullptr);
  }
  Window window(Mode m, double seconds) {
    allow(m);
    Window w;
    double running = 0;
    const auto start = Steady::now();
    auto due = start + kPeriod;
    while (us_since(start) < (seconds + kSettleSeconds) * 1e6) {
      while (Steady::now() < due) {
      }
      answer(++request_);
      const double us = us_since(due);
      show(request_);
      if (us_since(start) > kSettleSeconds * 1e6) {
        w.us.push_back(us);
        running += m == kNone ? 0 : tuned_[m]->sessions_running() > 0;
      }
      due += kPeriod;
      // A request that came too late does not make all that follow late: what is measured is a device, not a backlog.
      if (const auto now = Steady::now(); due < now) due = now + kPeriod / 4;
    }
    w.sessions = w.us.empty() ? 0 : running / static_cast<double>(w.us.size());
    return w;
  }
  void note(Mode m, const Window& w, int quad) {
    std::vector<uint16_t> units;
    for (const double us : w.us) units.push_back(static_cast<uint16_t>(std::min(us * 10, 65535.0)));
    latency_.write(reinterpret_cast<const char*>(units.data()), static_cast<long>(units.size() * 2));
    result_["windows"].push_back({{"mode", kNames[m]},
                                  {"quad", quad},
                                  {"requests", w.us.size()},
                                  {"p50_us", w.p(0.5)},
                                  {"p90_us", w.p(0.9)},
                                  {"p99_us", w.p(0.99)},
                                  {"max_us", w.p(1)},
                                  {"sessions_running", w.sessions}});
    std::printf("%-5s p50 %7.1f p99 %7.1f us, sessions ran %3.0f %%\n", kNames[m], w.p(0.5), w.p(0.99),
                w.sessions * 100);
    std::fflush(stdout);
  }

  // Ratio of a quantile to that without tuning in the same quad: mean of logarithms, 95 % by Student's t.
  static json by_quads(const std::vector<Quad>& quads, double q) {
    std::vector<double> logs;
    for (const Quad& w : quads)
      logs.push_back((std::log(w[1].p(q)) + std::log(w[2].p(q)) - std::log(w[0].p(q)) - std::log(w[3].p(q))) /
                     2);
    const double n = static_cast<double>(logs.size());
    double middle = 0, square = 0;
    for (const double l : logs) middle += l / n;
    for (const double l : logs) square += (l - middle) * (l - middle);
    // Cornish and Fisher's series for the 97.5 % point of t; within 0.002 from ten degrees of freedom on.
    const double z = 1.959964, v = n - 1;
    const double t =
        z + (z * z * z + z) / (4 * v) + (5 * std::pow(z, 5) + 16 * z * z * z + 3 * z) / (96 * v * v);
    const double half = t * std::sqrt(square / v / n);
    return {{"ratio", std::exp(middle)}, {"lo", std::exp(middle - half)}, {"hi", std::exp(middle + half)}};
  }
  // Ratio of the quantiles of all requests, 95 % by a bootstrap over quads. Histograms of 0.1 us: sums are quick.
  static json pooled(const std::vector<Quad>& quads, double q) {
    constexpr size_t kBins = 10'000;
    using Histogram = std::vector<uint32_t>;
    std::vector<std::array<Histogram, 2>> of_quad(quads.size(), {Histogram(kBins), Histogram(kBins)});
    for (size_t i = 0; i < quads.size(); ++i)
      for (size_t w = 0; w < 4; ++w)
        for (const double us : quads[i][w].us)
          ++of_quad[i][w == 1 || w == 2][std::min(static_cast<size_t>(us * 10), kBins - 1)];
    const auto ratio = [&](auto&& pick) {
      double at[2] = {};
      Histogram sum(kBins);
      for (const size_t tuned : {0, 1}) {
        std::fill(sum.begin(), sum.end(), 0);
        uint64_t total = 0, below = 0;
        for (size_t i = 0; i < of_quad.size(); ++i) {
          const Histogram& h = of_quad[pick(i)][tuned];
          for (size_t bin = 0; bin < kBins; ++bin) sum[bin] += h[bin], total += h[bin];
        }
        size_t bin = 0;
        for (; bin + 1 < kBins && static_cast<double>(below + sum[bin]) < q * static_cast<double>(total);
             ++bin)
          below += sum[bin];
        at[tuned] = static_cast<double>(bin) + 0.5;
      }
      return at[1] / at[0];
    };
    std::mt19937_64 random(1);
    std::vector<double> draws;
    for (int d = 0; d < 400; ++d) {
      std::vector<size_t> picks;
      for (size_t i = 0; i < quads.size(); ++i) picks.push_back(random() % quads.size());
      draws.push_back(ratio([&](size_t i) { return picks[i]; }));
    }
    return {{"ratio", ratio([](size_t i) { return i; })},
            {"lo", quantile(draws, 0.025)},
            {"hi", quantile(draws, 0.975)}};
  }
  void compare(const std::array<std::vector<Quad>, kModes>& quads, bool last) {
    for (const Mode m : {kIdle, kSame}) {
      if (quads[m].size() < 2) continue;
      json p99 = by_quads(quads[m], 0.99);
      p99["quads"] = quads[m].size();
      std::printf("  p99, tuning %s / none: %.3f [%.3f, %.3f], %zu quads\n", kNames[m],
                  p99["ratio"].get<double>(), p99["lo"].get<double>(), p99["hi"].get<double>(),
                  quads[m].size());
      result_["p99_over_none"][kNames[m]] = std::move(p99);
      result_["p50_over_none"][kNames[m]] = by_quads(quads[m], 0.5);
      if (last) result_["pooled_p99_over_none"][kNames[m]] = pooled(quads[m], 0.99);
    }
    std::fflush(stdout);
    std::ofstream(out_ + "/elsewhere.json") << result_.dump(1) << '\n';
  }

  static constexpr auto kPeriod = std::chrono::microseconds(400);
  static constexpr double kWindowSeconds = 0.8, kSettleSeconds = 0.25;
  static constexpr int64_t kServedColumns = 4096;
  const std::string out_;
  const double seconds_;
  const std::vector<int> cpus_;
  std::ofstream latency_;
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
