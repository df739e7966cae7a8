#include "evolve/judge/child_pool.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace niche::evolve::judge {
namespace {

// Roles: one caller, threads - 1 workers. Invariants: a worker runs each generation's body once; the caller
// returns only when pending_ is 0. Progress: blocks. Never destroyed: workers end with the process.
class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    for (int i = 1; i < threads; ++i) std::thread([this, i] { work(i); }).detach();
  }

  void run(int64_t tasks, void (*body)(void*, int64_t, int64_t), void* ctx) {
    {
      std::lock_guard lock(mutex_);
      tasks_ = tasks, body_ = body, ctx_ = ctx;
      pending_ = threads_ - 1;
      ++generation_;
    }
    wake_.notify_all();
    share(0, tasks, body, ctx);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
  }

 private:
  void share(int i, int64_t tasks, void (*body)(void*, int64_t, int64_t), void* ctx) const {
    const int64_t begin = tasks * i / threads_, end = tasks * (i + 1) / threads_;
    if (begin < end) body(ctx, begin, end);
  }

  void work(int i) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      const auto tasks = tasks_;
      const auto body = body_;
      const auto ctx = ctx_;
      lock.unlock();
      share(i, tasks, body, ctx);
      lock.lock();
      if (--pending_ == 0) done_.notify_one();
    }
  }

  const int threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  uint64_t generation_ = 0;
  int pending_ = 0;
  int64_t tasks_ = 0;
  void (*body_)(void*, int64_t, int64_t) = nullptr;
  void* ctx_ = nullptr;
};

}  // namespace

dispatch::Executor start_child_pool(int threads) {
  dispatch::Executor e;
  e.threads = std::max(1, threads);
  if (e.threads == 1) {
    e.parallel_for = [](void*, int64_t tasks, void (*body)(void*, int64_t, int64_t), void* ctx) {
      body(ctx, 0, tasks);
    };
    return e;
  }
  e.self = new Pool(e.threads);
  e.parallel_for = [](void* self, int64_t tasks, void (*body)(void*, int64_t, int64_t), void* ctx) {
    static_cast<Pool*>(self)->run(tasks, body, ctx);
  };
  return e;
}

}  // namespace niche::evolve::judge
