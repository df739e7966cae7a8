#include "examples/ranker/inference_queue.h"

namespace ranker {

InferenceQueue::InferenceQueue(int threads, size_t waiting_max) : waiting_max_(waiting_max) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { loop(); });
}

InferenceQueue::~InferenceQueue() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  ready_.notify_all();
  for (std::thread& t : threads_) t.join();
}

bool InferenceQueue::run(const std::function<void()>& work) {
  Job job{&work, false, {}};
  std::unique_lock lock(mutex_);
  if (closing_ || waiting_.size() >= waiting_max_) return false;
  waiting_.push_back(&job);
  ready_.notify_one();
  job.finished.wait(lock, [&] { return job.done; });
  return true;
}

void InferenceQueue::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ready_.wait(lock, [&] { return closing_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Job* job = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    (*job->work)();
    lock.lock();
    job->done = true;
    job->finished.notify_one();
  }
}

}  // namespace ranker
