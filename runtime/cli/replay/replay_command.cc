#include "runtime/cli/replay/replay_command.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/cli/number_flags.h"
#include "runtime/cli/progress_line.h"
#include "runtime/cli/replay/load.h"

namespace niche::replay {
namespace {

struct Options {
  std::string trace, host = "127.0.0.1", path = "/rank", json_file;
  int port = 8080, connections = 16;
  double rate = 0;
  size_t requests = 1000;
  SizeMap sizes;
};

// Prints one line a second while requests are answered.
class Progress {
 public:
  explicit Progress(size_t total) : total_(total), thread_([this] { loop(); }) {}
  ~Progress() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    thread_.join();
    line_.end();
  }
  void add(const ResponseSample& s) {
    const std::lock_guard lock(mutex_);
    ++answered_;
    failed_ += s.http_status != 200;
    recent_.push_back(s.latency_ms);
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::seconds(1), [&] { return done_; })) {
      char text[160];
      std::snprintf(text, sizeof text,
                    "%zu/%zu answered, %zu failed, %zu requests/s, p50 %.2f ms, p99 %.2f ms", answered_,
                    total_, failed_, recent_.size(), quantile(recent_, 0.5), quantile(recent_, 0.99));
      line_.show(text);
      recent_.clear();
    }
  }
  const size_t total_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  size_t answered_ = 0, failed_ = 0;
  std::vector<double> recent_;
  cli::ProgressLine line_;
  std::thread thread_;
};

int run(const Options& o) {
  if (o.sizes.length_min > o.sizes.length_max) {
    std::fprintf(stderr, "niche replay: --length-min %d is above --length-max %d\n", o.sizes.length_min,
                 o.sizes.length_max);
    return 2;
  }
  const auto rows = read_trace(o.trace, o.requests);
  if (!rows.ok()) {
    std::fprintf(stderr, "niche replay: %s\n", rows.status().to_string().c_str());
    return 2;
  }
  const auto requests = to_requests(*rows, o.sizes, o.rate > 0 ? o.rate : 1, 1);
  LoadOptions load;
  load.host = o.host;
  load.port = o.port;
  load.path = o.path;
  load.connections = o.connections;
  LoadResult r;
  {
    Progress progress(requests.size());
    load.on_response = [&](const ResponseSample& s) { progress.add(s); };
    r = o.rate > 0 ? open_loop(requests, load) : closed_loop(requests, load);
  }
  const nlohmann::json result = {{"requests", r.sent},
                                 {"failed", r.failed},
                                 {"first_failure", r.first_failure},
                                 {"seconds", r.seconds},
                                 {"requests_per_s", r.rate_per_s()},
                                 {"p50_ms", quantile(r.latency_ms, 0.5)},
                                 {"p90_ms", quantile(r.latency_ms, 0.9)},
                                 {"p99_ms", quantile(r.latency_ms, 0.99)},
                                 {"p999_ms", quantile(r.latency_ms, 0.999)}};
  std::printf("%s\n", result.dump(2).c_str());
  if (!o.json_file.empty() && !(std::ofstream(o.json_file) << result.dump(2) << "\n")) {
    std::fprintf(stderr, "niche replay: cannot write %s\n", o.json_file.c_str());
    return 2;
  }
  if (r.failed != 0)
    std::fprintf(stderr, "niche replay: %lld of %lld requests failed; the first: %s\n",
                 static_cast<long long>(r.failed), static_cast<long long>(r.sent), r.first_failure.c_str());
  return r.failed == 0 ? 0 : 1;
}

}  // namespace

void add_replay_command(CLI::App& app, int* exit_code) {
  auto o = std::make_shared<Options>();
  CLI::App* c =
      app.add_subcommand("replay", "drive a server with a trace (TIMESTAMP,ContextTokens,GeneratedTokens)");
  c->add_option("trace", o->trace, "the trace")->required()->check(CLI::ExistingFile);
  c->add_option("--host", o->host, "the server's host")->capture_default_str();
  c->add_option("--port", o->port, "the server's port")->check(CLI::Range(1, 65535))->capture_default_str();
  c->add_option("--path", o->path, "POST here")->capture_default_str();
  c->add_option("--requests", o->requests, "rows of the trace to use")
      ->check(CLI::Range(2, 10'000'000))
      ->capture_default_str();
  c->add_option("--rate", o->rate,
                "mean requests a second, arrivals spaced as in the trace; 0: closed loop, for capacity")
      ->check(cli::number_in(0, 1e6))
      ->capture_default_str();
  c->add_option("--connections", o->connections, "connections at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  c->add_option("--batch-max", o->sizes.batch_max, "largest batch")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  c->add_option("--length-min", o->sizes.length_min, "shortest history")
      ->check(CLI::Range(2, 512))
      ->capture_default_str();
  c->add_option("--length-max", o->sizes.length_max, "longest history")
      ->check(CLI::Range(2, 512))
      ->capture_default_str();
  c->add_option("--tokens-per-event", o->sizes.tokens_per_event, "ContextTokens an event of the history")
      ->check(cli::number_in(0.01, 1e6))
      ->capture_default_str();
  c->add_option("--tokens-per-candidate", o->sizes.tokens_per_candidate, "GeneratedTokens a candidate")
      ->check(cli::number_in(0.01, 1e6))
      ->capture_default_str();
  c->add_option("--json", o->json_file, "write the result there too");
  c->callback([o, exit_code] { *exit_code = run(*o); });
}

}  // namespace niche::replay
