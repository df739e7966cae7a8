#include "dispatch/thread_state.h"

#include <pthread.h>

#include <algorithm>
#include <new>

#include "dispatch/base/hash.h"

namespace niche::dispatch {

constinit thread_local ThreadFastPath thread_fast_path;

namespace {

constinit thread_local bool thread_exiting = false;
std::atomic<uint64_t> fork_count{0};

// In the child the calling thread is the only one, and it finds its states no more: its next call takes the
// slow way, which says kForked for every dispatcher of the parent. Costs the hot path nothing.
void after_fork_in_child() {
  fork_count.fetch_add(1, std::memory_order_relaxed);
  thread_fast_path = {};
}

void install_fork_handler() {
  static const int installed = pthread_atfork(nullptr, nullptr, &after_fork_in_child);
  (void)installed;
}

void apply(const SamplingRates& r, ThreadState* t) {
  const uint32_t sample_every = r.time_every != 0 && (r.shadow_every == 0 || r.time_every < r.shadow_every)
                                    ? r.time_every
                                    : r.shadow_every;
  // relaxed: a changed rate acts on some later call.
  t->time_below.store(ThreadState::below(r.time_every), std::memory_order_relaxed);
  t->shadow_below.store(ThreadState::below(r.shadow_every), std::memory_order_relaxed);
  t->sample_below.store(ThreadState::below(sample_every), std::memory_order_relaxed);
  t->time_every.store(r.time_every, std::memory_order_relaxed);
  t->shadow_every.store(r.shadow_every, std::memory_order_relaxed);
  t->sample_every.store(sample_every, std::memory_order_relaxed);
  t->challenger_shadow_every.store(r.challenger_shadow_every, std::memory_order_relaxed);
  t->region_shadow_every.store(r.region_shadow_every, std::memory_order_relaxed);
  t->request_below.store(ThreadState::below(r.request_every), std::memory_order_relaxed);
}

constexpr std::align_val_t kLine{64};
char* new_workspace(int64_t bytes) {
  return static_cast<char*>(::operator new(static_cast<size_t>(bytes), kLine, std::nothrow));
}
void delete_workspace(void* p) { ::operator delete(p, kLine); }

}  // namespace

// What a thread holds, over all dispatchers. Its destructor runs at thread exit.
struct ThreadRecords {
  struct Record {
    uint64_t dispatcher;
    std::shared_ptr<ThreadRegistry> registry;
    ThreadState* state;
  };
  std::vector<Record> records;

  ~ThreadRecords() {
    thread_exiting = true;
    thread_fast_path = {};
    for (Record& r : records) r.registry->release(r.state);
  }
  static ThreadRecords& mine() {
    thread_local ThreadRecords r;
    return r;
  }
};

ThreadState* detached_thread() {
  // Never freed: the last destructors of a process may call.
  static ThreadState* const state = [] {
    auto* s = new ThreadState;
    static const Snapshot nothing = empty_snapshot(UINT64_MAX, SnapshotMode::kDetached);
    s->pinned = &nothing;
    // relaxed: published by this initialisation. Above any epoch, so that guards are nested in it.
    s->epoch.stamp.store(UINT64_MAX, std::memory_order_relaxed);
    return s;
  }();
  return state;
}

const Snapshot* capturing_snapshot() {
  static const Snapshot s = empty_snapshot(UINT64_MAX, SnapshotMode::kCapturing);
  return &s;
}

void ThreadState::add_counts(uint32_t route_index, uint64_t* sum) const {
  const CounterChunk* c = chunks[route_index / kChunkRoutes].load(
      std::memory_order_acquire);  // acquire: pairs with ensure_chunks
  if (c == nullptr) return;
  for (int r = 0; r < kRungCount; ++r) {
    const auto& counter = c->by_rung[r][route_index % kChunkRoutes];
    sum[r] +=
        r == static_cast<int>(Rung::kExact) ? hits.count_of(route_index, counter.word()) : counter.get();
  }
}

void ThreadState::add_totals(uint64_t* sum) const {
  for (int r = 0; r < kRungCount; ++r) sum[r] += by_rung[r].get();
  sum[static_cast<int>(Rung::kExact)] += hits.hits();
}

ThreadRegistry::ThreadRegistry(uint64_t dispatcher, EpochDomain* domain, uint32_t threads_max)
    : dispatcher_(dispatcher), generation_(fork_generation()), threads_max_(threads_max), domain_(domain) {
  install_fork_handler();
  (void)detached_thread();  // made now: attach() may be called where nothing can be made
}

ThreadRegistry::~ThreadRegistry() {
  for (const auto& s : states_) {
    for (auto& c : s->chunks) delete c.load(std::memory_order_relaxed);
    delete_workspace(s->workspace.lend().block);
  }
}

uint64_t ThreadRegistry::fork_generation() { return fork_count.load(std::memory_order_relaxed); }

ThreadRegistry::Attached ThreadRegistry::attach() {
  // Before any lock: another thread may have held it at the fork.
  if (forked()) return {detached_thread(), FallbackReason::kForked};
  if (thread_exiting) return {detached_thread(), FallbackReason::kThreadExiting};
  auto& records = ThreadRecords::mine().records;
  for (const auto& r : records) {
    if (r.dispatcher == dispatcher_) {
      thread_fast_path = {dispatcher_, r.state};
      return {r.state, FallbackReason::kNone};
    }
  }
  // States of dispatchers that are gone: nobody else needs them.
  std::erase_if(records, [](const ThreadRecords::Record& r) {
    std::lock_guard<std::mutex> lock(r.registry->mutex_);
    return r.registry->domain_ == nullptr;
  });
  std::lock_guard<std::mutex> lock(mutex_);
  ThreadState* state = nullptr;
  if (!free_.empty()) {
    state = free_.back();
    free_.pop_back();
  } else {
    if (states_.size() >= threads_max_ || domain_ == nullptr) {
      return {detached_thread(), FallbackReason::kThreadLimit};
    }
    auto made = std::make_unique<ThreadState>();
    state = made.get();
    state->outer_scopes.reserve(8);
    state->random = mix64(dispatcher_ * 0x9e3779b97f4a7c15ULL + states_.size() + 1) | 1;
    for (uint32_t i = 0; i < chunks_; ++i)
      state->chunks[i].store(new CounterChunk, std::memory_order_relaxed);
    apply(rates_, state);
    if (workspace_bytes_ > 0) {
      // Published routes count on it, so a thread that cannot have it is served by fallbacks alone.
      char* block = new_workspace(workspace_bytes_);
      if (block == nullptr) {
        for (auto& c : state->chunks) delete c.load(std::memory_order_relaxed);
        return {detached_thread(), FallbackReason::kNoWorkspace};
      }
      state->workspace.set(block, static_cast<uint32_t>(workspace_bytes_ / 64));
    }
    domain_->attach(&state->epoch);
    states_.push_back(std::move(made));
  }
  records.push_back({dispatcher_, shared_from_this(), state});
  thread_fast_path = {dispatcher_, state};
  return {state, FallbackReason::kNone};
}

void ThreadRegistry::release(ThreadState* state) {
  if (forked()) return;  // the child's copy; the mutex may be held by a thread that does not exist here
  std::lock_guard<std::mutex> lock(mutex_);
  // The next owner starts afresh, but for counters, rings and the random state.
  for (auto& s : state->sites) s = {};
  state->pinned = nullptr;
  state->outer_scopes.clear();
  state->captured = nullptr;
  state->demands = 0;
  state->request = {};
  free_.push_back(state);
}

Status ThreadRegistry::ensure_chunks(uint32_t routes) {
  const uint32_t want = (routes + kChunkRoutes - 1) / kChunkRoutes;
  std::lock_guard<std::mutex> lock(mutex_);
  for (; chunks_ < want; ++chunks_) {
    for (const auto& s : states_) {
      if (s->chunks[chunks_].load(std::memory_order_relaxed) != nullptr) continue;
      auto* c = new (std::nothrow) CounterChunk;
      if (c == nullptr) return busy("routes: no memory for counters of route " + std::to_string(routes));
      // release: pairs, through the publication that follows, with the owner's load in count().
      s->chunks[chunks_].store(c, std::memory_order_release);
    }
  }
  return {};
}

Status ThreadRegistry::ensure_workspace(int64_t bytes, std::vector<std::shared_ptr<void>>* retired) {
  const int64_t rounded = (bytes + 63) / 64 * 64;
  std::lock_guard<std::mutex> lock(mutex_);
  if (rounded <= workspace_bytes_) return {};
  for (const auto& s : states_) {
    char* block = new_workspace(rounded);
    if (block == nullptr)
      return busy("workspace: no memory for " + std::to_string(rounded) + " bytes a thread");
    char* old = s->workspace.lend().block;
    s->workspace.set(block, static_cast<uint32_t>(rounded / 64));
    if (old != nullptr) retired->push_back(std::shared_ptr<void>(old, &delete_workspace));
  }
  workspace_bytes_ = rounded;
  return {};
}

uint32_t ThreadRegistry::workspace_units() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<uint32_t>(workspace_bytes_ / 64);
}

void ThreadRegistry::set_sampling(const SamplingRates& rates) {
  std::lock_guard<std::mutex> lock(mutex_);
  rates_ = rates;
  for (const auto& s : states_) apply(rates, s.get());
}

void ThreadRegistry::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  domain_ = nullptr;
}

uint32_t ThreadRegistry::attached() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<uint32_t>(states_.size() - free_.size());
}

}  // namespace niche::dispatch
