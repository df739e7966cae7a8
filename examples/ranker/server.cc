#include "examples/ranker/server.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <httplib.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "dispatch/dispatcher.h"
#include "examples/ranker/checker.h"
#include "examples/ranker/inference_queue.h"
#include "examples/ranker/model.h"
#include "examples/ranker/niche_ops.h"
#include "examples/ranker/place.h"
#include "examples/ranker/stop_signals.h"
#include "examples/ranker/timing_ops.h"

namespace ranker {
namespace {

using nlohmann::json;

constexpr size_t kWaitingMax = 1024;
constexpr int kHttpThreads = 256;  // a connection holds one as long as it lives
constexpr int kBacklog = 1024;
constexpr int kKeepAliveSeconds = 5;  // stop() waits for it

// A whole number of `body` within [lo, hi], or a message that names the field.
std::optional<int64_t> whole(const json& body, const char* name, int64_t lo, int64_t hi, std::string* error) {
  const auto at = body.find(name);
  if (at != body.end() && at->is_number_integer() && *at >= lo && *at <= hi) return at->get<int64_t>();
  *error = std::string("field '") + name + "' must be a whole number from " + std::to_string(lo) + " to " +
           std::to_string(hi);
  return {};
}

void append(std::string* text, const float* v, int64_t n) {
  char buf[24];
  *text += '[';
  for (int64_t i = 0; i < n; ++i)
    text->append(buf, static_cast<size_t>(
                          std::snprintf(buf, sizeof buf, i ? ",%.9g" : "%.9g", static_cast<double>(v[i]))));
  *text += ']';
}

// The control arm of a first kernel's rollout is the library; of a later one's, the kernel before it. Counted
// as library.
bool is_evolved(niche::dispatch::Rung rung) {
  using niche::dispatch::Rung;
  return rung == Rung::kExact || rung == Rung::kRegion || rung == Rung::kCanary;
}

Features on(const Place& place, const Features& f) { return place.on_host() ? f : f.to(place.device()); }

// {"seconds":{op: s},"total":s}: time by operator over a spread of request sizes, one at a time.
std::string profile(const Weights& weights, const Place& place, Ops& ops, int requests) {
  const c10::InferenceMode inference;
  const RequestStream stream(place);
  TimingOps timing(ops, place);
  double total = 0;
  for (int i = 0; i < requests; ++i) {
    const Features f =
        Features::make(0x7000000000 + static_cast<uint64_t>(i), 1 + i % 8, 24 + (i * 97) % 377);
    const auto start = std::chrono::steady_clock::now();
    (void)rank(weights, timing, on(place, f));
    place.wait();
    total += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  return json{{"seconds", timing.seconds()}, {"total", total}}.dump();
}

// What an operator should see; the rest is in /status.
class TroubleLog final : public niche::dispatch::LogSink {
 public:
  void write(niche::dispatch::LogLevel level, std::string_view part, std::string_view text) override {
    if (level < niche::dispatch::LogLevel::kWarning) return;
    std::fprintf(stderr, "ranker: %.*s: %.*s\n", static_cast<int>(part.size()), part.data(),
                 static_cast<int>(text.size()), text.data());
  }
};

class Server {
 public:
  Server(niche::Runtime& runtime, const Place& place, const Weights& weights, std::unique_ptr<Ops> ops,
         int threads)
      : runtime_(runtime),
        place_(place),
        weights_(weights),
        ops_(std::move(ops)),
        queue_(threads, kWaitingMax) {
    http_.new_task_queue = [] { return new httplib::ThreadPool(kHttpThreads); };
    // httplib's default lets a second server listen on the same port, each getting some of the requests.
    http_.set_socket_options([this](socket_t s) {
      const int yes = 1;
      ::setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      listener_ = s;
    });
    http_.set_tcp_nodelay(true);
    http_.set_keep_alive_max_count(1'000'000);
    http_.set_keep_alive_timeout(kKeepAliveSeconds);
    http_.set_payload_max_length(64 << 10);
    http_.Post("/rank", [this](const httplib::Request& q, httplib::Response& a) { rank_one(q, a); });
    http_.Get("/status",
              [this](const auto&, auto& a) { a.set_content(runtime_.status(), "application/json"); });
    http_.Get("/metrics", [this](const auto&, auto& a) { a.set_content(runtime_.metrics(), "text/plain"); });
    http_.Get("/health", [this](const auto&, auto& a) {
      const niche::Health h = runtime_.health();
      a.status = h.ok ? 200 : 503;
      a.set_content(h.ok ? "ok\n" : h.reason + "\n", "text/plain");
    });
    http_.Post("/force", [this](const httplib::Request& q, httplib::Response& a) {
      const niche::Status s = runtime_.force(q.get_param_value("kernel"));
      a.status = s.ok() ? 200 : 400;
      a.set_content(s.to_string() + "\n", "text/plain");
    });
    http_.Post("/evolution", [this](const httplib::Request& q, httplib::Response& a) {
      const std::string paused = q.get_param_value("paused");
      if (paused != "0" && paused != "1") {
        a.status = 400;
        a.set_content("parameter 'paused' must be 0 or 1, not '" + paused + "'\n", "text/plain");
        return;
      }
      runtime_.pause_evolution(paused == "1");
      a.set_content("ok\n", "text/plain");
    });
    http_.Get("/profile", [this](const httplib::Request& q, httplib::Response& a) {
      const int n = std::clamp(std::atoi(q.get_param_value("requests").c_str()), 1, 1000);
      std::string text;
      if (!queue_.run([&] { text = profile(weights_, place_, *ops_, n); })) a.status = 503;
      a.set_content(text, "application/json");
    });
  }

  // Blocks until stop(). Returns false when the port cannot be had.
  bool run(int port, const std::string& port_file) {
    const int bound =
        port == 0 ? http_.bind_to_any_port("127.0.0.1") : (http_.bind_to_port("127.0.0.1", port) ? port : -1);
    if (bound < 0) {
      ended_ = true;
      return false;
    }
    // httplib's queue of five drops connections of a burst: they retry after a second, or are reset.
    if (::listen(listener_, kBacklog) != 0)
      std::fprintf(stderr, "ranker: a backlog of %d: %s\n", kBacklog, std::strerror(errno));
    std::printf("ranker: listening on 127.0.0.1:%d\n", bound);
    std::fflush(stdout);
    if (!port_file.empty()) {
      const std::string part = port_file + ".part";
      if (!(std::ofstream(part) << bound << std::endl) || std::rename(part.c_str(), port_file.c_str()) != 0)
        std::fprintf(stderr, "ranker: --port-file %s: %s\n", port_file.c_str(), std::strerror(errno));
    }
    const bool listened = http_.listen_after_bind();
    ended_ = true;
    return listened;
  }
  // Also right when called before run() listens, or after it ended: it waits for either.
  void stop() {
    while (!http_.is_running() && !ended_) std::this_thread::yield();
    http_.stop();
  }

 private:
  void rank_one(const httplib::Request& q, httplib::Response& a) {
    const json body = json::parse(q.body, nullptr, false);
    std::string error = "the body is not a JSON object";
    std::optional<int64_t> id, batch, length;
    if (body.is_object() && (id = whole(body, "id", 0, INT64_MAX, &error)) &&
        (batch = whole(body, "batch", 1, kBatchMax, &error)) &&
        (length = whole(body, "length", 2, kLengthMax, &error))) {
      std::string text;
      std::exception_ptr thrown;
      const bool ran = queue_.run([&] {
        try {
          text = answer(static_cast<uint64_t>(*id), *batch, *length);
        } catch (...) {
          thrown = std::current_exception();
        }
      });
      if (!ran) {
        a.status = 503;
        a.set_content("more than 1024 requests wait\n", "text/plain");
        return;
      }
      if (thrown) {
        a.status = 500;
        try {
          std::rethrow_exception(thrown);
        } catch (const std::exception& e) {
          a.set_content(std::string(e.what()) + "\n", "text/plain");
        }
        return;
      }
      a.set_content(text, "application/json");
      return;
    }
    a.status = 400;
    a.set_content(error + "\n", "text/plain");
  }

  std::string answer(uint64_t id, int64_t batch, int64_t length) {
    const c10::InferenceMode inference;
    const RequestStream stream(place_);
    const bool tuning_before = runtime_.sessions_running() > 0;
    const niche::dispatch::RouteCounts before = runtime_.dispatcher().thread_counts();
    Ranking r;
    {
      const niche::RequestScope scope(runtime_.dispatcher(),
                                      {.id = id, .capture = niche::CaptureState::kNone});
      r = rank(weights_, *ops_, on(place_, Features::make(id, batch, length)));
      // Within the scope: a request is in flight until its answer is on the host.
      r.logits = r.logits.cpu();
      if (is_sampled(id, kSampleOneIn)) r.features = r.features.cpu();
    }
    const niche::dispatch::RouteCounts after = runtime_.dispatcher().thread_counts();
    int64_t calls = 0, fallbacks = 0;
    for (int rung = 0; rung < niche::dispatch::kRungCount; ++rung) {
      const auto n = static_cast<int64_t>(after.by_rung[rung] - before.by_rung[rung]);
      calls += n;
      if (!is_evolved(static_cast<niche::dispatch::Rung>(rung))) fallbacks += n;
    }
    std::string text = "{\"id\":" + std::to_string(id) + ",\"calls\":" + std::to_string(calls) +
                       ",\"evolved\":" + std::to_string(calls - fallbacks) +
                       ",\"tuning\":" + (tuning_before || runtime_.sessions_running() > 0 ? "1" : "0") +
                       ",\"logits\":";
    append(&text, r.logits.data_ptr<float>(), batch);
    if (is_sampled(id, kSampleOneIn)) {
      text += ",\"features\":[";
      const at::Tensor f = r.features.contiguous();
      for (int64_t b = 0; b < batch; ++b) {
        if (b > 0) text += ',';
        append(&text, f.data_ptr<float>() + b * f.size(1), f.size(1));
      }
      text += ']';
    }
    return text + "}";
  }

  niche::Runtime& runtime_;
  const Place& place_;
  const Weights& weights_;
  std::unique_ptr<Ops> ops_;
  InferenceQueue queue_;
  httplib::Server http_;
  socket_t listener_ = -1;
  std::atomic<bool> ended_{false};
};

}  // namespace

int serve(niche::RuntimeConfig config, const ServerOptions& options) {
  at::set_num_threads(1);
  if (!config.log) config.log = std::make_shared<TroubleLog>();
  // Before the Runtime: until all of it has ended, a second signal ends the process.
  StopSignals signals;
  if (options.parent > 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != options.parent) return 0;  // it is gone already
  }

  const auto place = Place::open(options.device, options.tuning_duty, &config);
  if (!place.ok()) {
    std::fprintf(stderr, "ranker: %s\n", place.status().to_string().c_str());
    return 1;
  }
  auto runtime = niche::Runtime::create(std::move(config));
  if (!runtime.ok()) {
    std::fprintf(stderr, "ranker: %s\n", runtime.status().to_string().c_str());
    return 1;
  }
  if (options.paused) (*runtime)->pause_evolution(true);
  const Weights weights = Weights::make(kWeightsSeed).to(place->device());
  auto ops = make_niche_ops(**runtime, weights);
  if (!ops.ok()) {
    std::fprintf(stderr, "ranker: %s\n", ops.status().to_string().c_str());
    return 1;
  }
  Server server(**runtime, *place, weights, std::move(*ops), options.threads);
  signals.on_stop([&server] { server.stop(); });
  const bool listened = server.run(options.port, options.port_file);
  if (!listened) std::fprintf(stderr, "ranker: cannot listen on 127.0.0.1:%d\n", options.port);
  signals.on_stop(nullptr);
  return listened ? 0 : 1;
}

}  // namespace ranker
