#include "examples/ranker/demo.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "examples/ranker/checker.h"
#include "examples/ranker/live_view.h"
#include "examples/ranker/operator_rows.h"
#include "examples/ranker/out_directory.h"
#include "examples/ranker/place.h"
#include "examples/ranker/report.h"
#include "examples/ranker/server_process.h"
#include "runtime/cli/replay/load.h"

namespace ranker {
namespace {

using niche::replay::closed_loop;
using niche::replay::LoadOptions;
using niche::replay::LoadResult;
using niche::replay::open_loop;
using niche::replay::RequestSpec;
using Clock = std::chrono::steady_clock;

constexpr size_t kStretch = 1000;         // requests of the latency phases
constexpr size_t kCapacityList = 600;     // requests of one capacity run
constexpr size_t kDeviceRequests = 4000;  // the same on a device, where a second has more of them
constexpr size_t kSamplesMax = 600;
constexpr double kCostWindowSeconds = 1.5;
constexpr double kQuietSeconds = 8;  // tuning ends when nothing happened for this long

std::string first_line_of(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (line.rfind(key, 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::string command_output(const char* command) {
  std::string text;
  if (FILE* pipe = ::popen(command, "r")) {
    char buf[256];
    while (std::fgets(buf, sizeof buf, pipe)) text += buf;
    ::pclose(pipe);
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// One run of the demo: the server, the load and what was seen.
class Demo {
 public:
  Demo(const DemoOptions& options, const std::atomic<bool>& stop)
      : o_(options), stop_(stop), checker_(kSamplesMax) {}

  int run() {
    const auto rows = niche::replay::read_trace(o_.trace);
    if (!rows.ok()) return fail(rows.status());
    if (const auto s = describe_run(); !s.ok()) return fail(s);
    // Two fixed lists: capacity draws from all over the trace, latency replays one stretch with its own
    // bursts.
    const bool on_host = o_.device == "cpu";
    const auto all = niche::replay::to_requests(*rows, sizes(), 1.0, 1);
    const size_t capacity = on_host ? kCapacityList : kDeviceRequests,
                 stretch = on_host ? kStretch : kDeviceRequests;
    for (size_t i = 0; i < capacity; ++i) capacity_list_.push_back(all[i * all.size() / capacity]);
    stretch_rows_.assign(rows->begin(),
                         rows->begin() + static_cast<ptrdiff_t>(std::min(stretch, rows->size())));

    if (const auto s = claim_out_directory(o_.out); !s.ok()) return fail(s);
    for (auto phase :
         {&Demo::start_cold, &Demo::before, &Demo::tune, &Demo::after, &Demo::restart, &Demo::check}) {
      const auto status = (this->*phase)();
      if (stop_) return interrupted();
      if (!status.ok()) return fail(status);
    }
    report_.seconds = since_start();
    if (const auto s = write_report(report_, o_.out); !s.ok()) return fail(s);
    std::printf("\n%s\nreport: %s/report.html and report.json (%.0f s)\n", to_table(report_).c_str(),
                o_.out.c_str(), report_.seconds);
    return report_.wrong == 0 && report_.failed == 0 ? 0 : 1;
  }

 private:
  using Status = niche::dispatch::Status;

  double since_start() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void say(const std::string& text) {
    std::printf("[%5.1f s] %s\n", since_start(), text.c_str());
    std::fflush(stdout);
  }
  int fail(const Status& s) {
    std::fprintf(stderr, "demo: %s\n", s.to_string().c_str());
    return 1;
  }
  int interrupted() {
    server_.reset();
    std::printf("\nstopped; nothing keeps running\n");
    return 130;
  }

  Status describe_run() {
    const auto device = Place::describe(o_.device);
    if (!device.ok()) return device.status();
    report_.commit = command_output("git rev-parse --short HEAD 2>/dev/null");
    report_.machine = first_line_of("/proc/cpuinfo", "model name") + ", " +
                      std::to_string(std::thread::hardware_concurrency()) + " cores" +
                      (device->empty() ? "" : "; " + *device);
    report_.trace = std::filesystem::path(o_.trace).filename().string();
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
    report_.date = date;
    return {};
  }

  niche::dispatch::Result<std::unique_ptr<ServerProcess>> start_server() {
    return ServerProcess::start(o_.server_program,
                                {"serve", "--threads", std::to_string(o_.threads), "--cache",
                                 o_.out + "/cache", "--worker", o_.worker_program, "--device", o_.device,
                                 "--tuning-duty", std::to_string(o_.tuning_duty), "--paused"},
                                o_.out);
  }

  LoadOptions load(int connections) {
    LoadOptions l;
    l.port = server_->port();
    l.connections = connections;
    l.stop = &stop_;
    l.on_response = [this](const niche::replay::ResponseSample& s) {
      view_.add(s);
      if (s.http_status == 200) checker_.offer(s.request, *s.body);
    };
    return l;
  }

  // Adds a run's counts to the report. Ctrl-C reaches the server as well: what fails then is not its failure.
  LoadResult counted(LoadResult r) {
    report_.requests += r.sent;
    report_.failed += r.failed;
    if (r.failed > 0 && !stop_)
      say("FAILED: " + std::to_string(r.failed) + ", the first: " + r.first_failure);
    return r;
  }
  LoadResult capacity_run() { return counted(closed_loop(fresh_ids(capacity_list_), load(2 * o_.threads))); }
  LoadResult stretch_run() {
    return counted(
        open_loop(fresh_ids(niche::replay::to_requests(stretch_rows_, sizes(), rate_, 0)), load(32)));
  }
  niche::replay::SizeMap sizes() const {
    niche::replay::SizeMap map;
    map.tokens_per_candidate *= static_cast<double>(map.batch_max) / o_.batch_max;
    map.batch_max = o_.batch_max;
    return map;
  }
  // Same sizes and arrivals, new ids: features are fresh in every run.
  std::vector<RequestSpec> fresh_ids(std::vector<RequestSpec> list) {
    for (RequestSpec& q : list) q.id = next_id_++;
    return list;
  }

  Status start_cold() {
    say("starting the server on an empty cache (" + o_.out + "/cache), evolution paused");
    auto server = start_server();
    if (!server.ok()) return server.status();
    server_ = std::move(*server);
    NICHE_RETURN_IF_ERROR(server_->post("/force?kernel=fallback"));
    say("warming up: the best library form of each operator is measured");
    (void)capacity_run();
    return {};
  }

  Status before() {
    const LoadResult c = capacity_run();
    if (stop_) return {};
    rate_ = 0.5 * c.rate_per_s();
    say("before: " + std::to_string(static_cast<int>(c.rate_per_s())) +
        " requests/s at capacity; latency at " + std::to_string(static_cast<int>(rate_)) + " requests/s");
    const LoadResult l = stretch_run();
    report_.p50_before_ms = niche::replay::quantile(l.latency_ms, 0.5);
    report_.p99_before_ms = niche::replay::quantile(l.latency_ms, 0.99);
    auto profile = server_->get("/profile?requests=40");
    if (!profile.ok()) return profile.status();
    profile_ = *profile;
    return {};
  }

  // The stretch is replayed until sessions and rollouts have been quiet for a while, or time is up.
  Status tune() {
    NICHE_RETURN_IF_ERROR(server_->post("/force?kernel="));
    NICHE_RETURN_IF_ERROR(server_->post("/evolution?paused=0"));
    say("evolution on: sessions run beside live traffic");
    const double begin = since_start();
    view_.start(server_.get(), start_);
    std::vector<double> latencies;
    const auto goes_on = [&] {
      return !stop_ && since_start() - begin < o_.tuning_seconds_max && view_.seconds_quiet() < kQuietSeconds;
    };
    if (o_.tuning_cost) NICHE_RETURN_IF_ERROR(alternate(goes_on));
    while (goes_on()) (void)stretch_run();
    view_.finish();
    report_.samples = view_.samples();
    report_.events = view_.events();
    const auto during = view_.latencies_during_sessions();
    report_.p50_during_ms = niche::replay::quantile(during, 0.5);
    report_.p99_during_ms = niche::replay::quantile(during, 0.99);
    NICHE_RETURN_IF_ERROR(server_->post("/evolution?paused=1"));
    auto status = server_->get("/status");
    if (!status.ok()) return status.status();
    return fill_from_status(*status, profile_, &report_);
  }

  // Sessions run in every second pair of windows; the four windows of a quad are the same requests.
  Status alternate(const std::function<bool()>& goes_on) {
    const std::vector<RequestSpec> all = niche::replay::to_requests(stretch_rows_, sizes(), rate_, 0);
    const auto each = std::min(all.size(), static_cast<size_t>(std::max(1.0, rate_ * kCostWindowSeconds)));
    TuningCostMeter meter;
    LoadOptions l = load(32);
    l.on_response = [&, counted_on = l.on_response](const niche::replay::ResponseSample& s) {
      counted_on(s);
      if (s.http_status == 200) meter.add(s.scheduled_s, s.latency_ms, was_tuning(*s.body));
    };
    for (int quad = 0; goes_on(); ++quad) {
      const size_t from = static_cast<size_t>(quad) * each % (all.size() - each + 1);
      std::vector<RequestSpec> slice(all.begin() + static_cast<ptrdiff_t>(from),
                                     all.begin() + static_cast<ptrdiff_t>(from + each));
      const double zero = slice.front().arrival_s;
      for (RequestSpec& q : slice) q.arrival_s -= zero;
      for (int at = 0; at < TuningCostMeter::kWindows && goes_on(); ++at) {
        const bool on = TuningCostMeter::kOn[static_cast<size_t>(at)];
        NICHE_RETURN_IF_ERROR(server_->post(on ? "/evolution?paused=0" : "/evolution?paused=1"));
        meter.begin(quad, at);
        (void)counted(open_loop(fresh_ids(slice), l));
      }
    }
    report_.tuning_cost = meter.summary();
    return {};
  }

  Status after() {
    say("after: capacity in ABBA order, best library forms (A) and evolved kernels (B)");
    for (const bool evolved : {false, true, true, false}) {
      NICHE_RETURN_IF_ERROR(server_->post(evolved ? "/force?kernel=" : "/force?kernel=fallback"));
      const LoadResult c = capacity_run();
      (evolved ? report_.throughput_after_runs : report_.throughput_before_runs).push_back(c.rate_per_s());
      say(std::string(evolved ? "  B " : "  A ") + std::to_string(c.rate_per_s()) + " requests/s");
      if (stop_) return {};
    }
    const auto mean = [](const std::vector<double>& v) { return (v[0] + v[1]) / 2; };
    report_.throughput_before_rps = mean(report_.throughput_before_runs);
    report_.throughput_after_rps = mean(report_.throughput_after_runs);
    NICHE_RETURN_IF_ERROR(server_->post("/force?kernel="));
    view_.reset_share();
    const LoadResult l = stretch_run();
    report_.p50_after_ms = niche::replay::quantile(l.latency_ms, 0.5);
    report_.p99_after_ms = niche::replay::quantile(l.latency_ms, 0.99);
    report_.evolved_call_share = view_.evolved_share();
    return {};
  }

  Status restart() {
    say("restarting the server on the cache it filled");
    NICHE_RETURN_IF_ERROR(server_->stop());
    auto server = start_server();
    if (!server.ok()) return server.status();
    server_ = std::move(*server);
    view_.reset_share();
    const std::vector<RequestSpec> first(capacity_list_.begin(), capacity_list_.begin() + 200);
    (void)counted(closed_loop(fresh_ids(first), load(1)));
    report_.evolved_call_share_after_restart = view_.evolved_share();
    return server_->stop();
  }

  Status check() {
    say("recomputing sampled responses in fp64");
    const auto outcome = checker_.check(kWeightsSeed, static_cast<int>(std::thread::hardware_concurrency()));
    report_.checked = outcome.checked;
    report_.checked_evolved = outcome.checked_evolved;
    report_.wrong = outcome.wrong;
    if (outcome.wrong > 0) say("WRONG: " + outcome.first_wrong);
    return {};
  }

  const DemoOptions& o_;
  const std::atomic<bool>& stop_;
  const Clock::time_point start_ = Clock::now();
  Report report_;
  Checker checker_;
  LiveView view_;
  std::unique_ptr<ServerProcess> server_;
  std::vector<RequestSpec> capacity_list_;
  std::vector<niche::replay::TraceRow> stretch_rows_;
  std::string profile_;
  double rate_ = 1;
  uint64_t next_id_ = 1;
};

}  // namespace

int run_demo(const DemoOptions& options, const std::atomic<bool>& stop) { return Demo(options, stop).run(); }

}  // namespace ranker
