#include "runtime/session_runner.h"

#include <algorithm>
#include <utility>

#include "runtime/threads.h"

namespace niche::core {

using evolve::SessionEvent;

SessionRunner::SessionRunner(evolve::WorkerOptions worker, evolve::SessionRequest request)
    : worker_(std::move(worker)), request_(std::move(request)), thread_([this] { run(); }) {}

SessionRunner::~SessionRunner() {
  kill_.store(true);
  thread_.join();
}

void SessionRunner::push(SessionEvent event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (events_.size() >= kEventsMax) {
    const auto progress = std::find_if(events_.begin(), events_.end(), [](const SessionEvent& e) {
      return e.kind == SessionEvent::Kind::kProgress;
    });
    if (progress != events_.end()) events_.erase(progress);
  }
  events_.push_back(std::move(event));
}

std::vector<SessionEvent> SessionRunner::take_events() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(events_, {});
}

void SessionRunner::fail(const dispatch::Status& status) {
  SessionEvent e;
  e.kind = SessionEvent::Kind::kFailed;
  e.reason = status.to_string();
  push(std::move(e));
}

void SessionRunner::run() {
  name_thread("niche-session");
  constexpr int kPollMs = 5;
  auto spawned = evolve::WorkerClient::spawn(worker_);
  if (!spawned.ok()) {
    fail(spawned.status());
    ended_.store(true);
    return;
  }
  const std::unique_ptr<evolve::WorkerClient> client = *std::move(spawned);
  pid_.store(client->pid());
  dispatch::Status status = client->start(request_);
  bool paused = false, stopping = false;
  while (status.ok() && !kill_.load()) {
    if (want_stop_.load() && !stopping) {
      stopping = true;
      status = client->stop();
    }
    // A session that was told to end must run to do so.
    const bool pause = want_paused_.load() && !stopping;
    if (pause != paused) {
      paused = pause;
      status = pause ? client->pause() : client->resume();
      if (!status.ok()) break;
    }
    std::optional<SessionEvent> event = client->poll(kPollMs);
    if (!event) continue;
    const bool last = event->kind == SessionEvent::Kind::kDone || event->kind == SessionEvent::Kind::kFailed;
    push(*std::move(event));
    if (last) break;
  }
  if (!status.ok()) fail(status);
  pid_.store(0);
  ended_.store(true);
}

}  // namespace niche::core
