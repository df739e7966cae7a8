// A bounded first-in-first-out queue in front of a fixed set of inference threads: HTTP threads wait, models
// run on as many cores as the operator gave them.
//
// Thread-safety: all members may be called from any thread. Bound: `waiting_max` requests; past it run()
// refuses.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ranker {

class InferenceQueue {
 public:
  InferenceQueue(int threads, size_t waiting_max);
  ~InferenceQueue();  // finishes what was accepted

  // Runs `work` on an inference thread and returns when it is done; false: the queue is full or closing.
  bool run(const std::function<void()>& work);

 private:
  struct Job {
    const std::function<void()>* work;
    bool done = false;
    std::condition_variable finished;
  };
  void loop();

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Job*> waiting_;
  const size_t waiting_max_;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ranker
