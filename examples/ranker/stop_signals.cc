#include "examples/ranker/stop_signals.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>

namespace ranker {
namespace {

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  waiter_ = std::thread([this] { wait(); });
}

StopSignals::~StopSignals() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ::kill(::getpid(), SIGTERM);  // wakes the waiter
  waiter_.join();
  if (stopper_.joinable()) stopper_.join();
}

void StopSignals::wait() {
  const sigset_t signals = stop_signals();
  for (;;) {
    int signal = 0;
    sigwait(&signals, &signal);
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    if (asked_) {
      std::fprintf(stderr, "ranker: signal %d again: leaving at once\n", signal);
      ::_exit(128 + signal);
    }
    asked_ = true;
    if (stop_) stopper_ = std::thread(stop_);
  }
}

void StopSignals::on_stop(std::function<void()> stop) {
  std::thread running;
  {
    const std::lock_guard lock(mutex_);
    stop_ = std::move(stop);
    if (stop_ && asked_ && !stopper_.joinable()) stopper_ = std::thread(stop_);
    if (!stop_) running.swap(stopper_);
  }
  if (running.joinable()) running.join();
}

}  // namespace ranker
