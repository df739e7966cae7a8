#include "examples/ranker/live_view.h"

#include <cstdio>
#include <cstdlib>

#include "examples/ranker/status_summary.h"

namespace ranker {
namespace {

constexpr size_t kLatenciesMax = 1'000'000;

// The number after `"name":` in a flat JSON text written by our own server; 0 when absent. Parsing whole
// bodies would cost the client more than the server spends on HTTP.
int64_t field(const std::string& body, const char* name) {
  const size_t at = body.find(name);
  return at == std::string::npos
             ? 0
             : std::strtoll(body.c_str() + at + std::string_view(name).size(), nullptr, 10);
}

}  // namespace

bool was_tuning(const std::string& body) { return field(body, "\"tuning\":") != 0; }

void LiveView::add(const niche::replay::ResponseSample& s) {
  if (s.http_status != 200) return;
  const int64_t calls = field(*s.body, "\"calls\":"), evolved = field(*s.body, "\"evolved\":");
  const bool tuning = was_tuning(*s.body);
  const std::lock_guard lock(mutex_);
  calls_ += calls;
  evolved_ += evolved;
  second_calls_ += calls;
  second_evolved_ += evolved;
  second_latency_ms_.push_back(s.latency_ms);
  if (tuning && during_ms_.size() < kLatenciesMax) during_ms_.push_back(s.latency_ms);
}

double LiveView::evolved_share() const {
  const std::lock_guard lock(mutex_);
  return calls_ ? static_cast<double>(evolved_) / static_cast<double>(calls_) : 0;
}

void LiveView::reset_share() {
  const std::lock_guard lock(mutex_);
  calls_ = evolved_ = 0;
}

void LiveView::start(const ServerProcess* server, std::chrono::steady_clock::time_point zero) {
  server_ = server;
  zero_ = zero;
  {
    const std::lock_guard lock(mutex_);
    second_latency_ms_.clear();
    second_calls_ = second_evolved_ = 0;
  }
  thread_ = std::thread([this] { loop(); });
}

void LiveView::finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(wake_mutex_);
    finishing_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void LiveView::loop() {
  std::unique_lock lock(wake_mutex_);
  while (!wake_.wait_for(lock, std::chrono::seconds(1), [&] { return finishing_; })) tick();
}

void LiveView::tick() {
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now() - zero_).count();
  const auto body = server_->get("/status");
  if (!body.ok()) return;
  const auto summary = summarize_status(*body);
  if (!summary.ok()) return;

  Sample s;
  s.at_s = now;
  s.sessions_running = summary->sessions_running;
  s.swaps = summary->swaps;
  {
    const std::lock_guard lock(mutex_);
    s.requests_per_s = static_cast<double>(second_latency_ms_.size());
    s.p50_ms = niche::replay::quantile(second_latency_ms_, 0.5);
    s.p99_ms = niche::replay::quantile(second_latency_ms_, 0.99);
    s.evolved_share =
        second_calls_ ? static_cast<double>(second_evolved_) / static_cast<double>(second_calls_) : 0;
    second_latency_ms_.clear();
    second_calls_ = second_evolved_ = 0;
    samples_.push_back(s);
  }
  for (; events_seen_ < summary->events.size(); ++events_seen_) {
    const std::string& text = summary->events[events_seen_];
    {
      const std::lock_guard lock(mutex_);
      events_.emplace_back(now, text);
    }
    std::printf("\r\033[K[%5.1f s]   %s\n", now, text.c_str());
  }
  const bool busy = summary->sessions_running > 0 || summary->rollouts_running > 0;
  if (busy || last_busy_s_ < 0) last_busy_s_ = summary->sessions > 0 || busy ? now : -1;
  quiet_s_ = last_busy_s_ < 0 ? 0 : now - last_busy_s_;
  std::printf(
      "\r\033[K[%5.1f s] %4.0f req/s  p50 %6.2f  p99 %6.2f ms  sessions %d (%d running)  swaps %d  evolved "
      "%3.0f %% %s",
      now, s.requests_per_s, s.p50_ms, s.p99_ms, summary->sessions, summary->sessions_running, s.swaps,
      100 * s.evolved_share, summary->current.c_str());
  std::fflush(stdout);
}

std::vector<Sample> LiveView::samples() const {
  const std::lock_guard lock(mutex_);
  return samples_;
}
std::vector<std::pair<double, std::string>> LiveView::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}
std::vector<double> LiveView::latencies_during_sessions() const {
  const std::lock_guard lock(mutex_);
  return during_ms_;
}

}  // namespace ranker
