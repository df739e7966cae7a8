// WeakMemory: runs a few threads of real code, through its atomics template parameter, under every
// interleaving and every value that a load may return, and reports the first execution that breaks a promise.
//
// The model is operational and view-based: each location keeps all its stores in modification order; each
// thread has a view (the oldest store of each location that it may still read) and a vector clock. Release
// stores carry both, acquire loads take them. A seq_cst load reads no store older than the last seq_cst one.
// Asymmetric fences follow P1202: a light and a heavy fence order views like two seq_cst fences, two light
// ones do not. Races on plain data are found by vector clocks, so that a read that is only late, never wrong
// in value, is found too.
//
// Weaker than C++20 it is not where each location has one writer (stores are appended, as then they must be).
// What it lacks: load buffering (a load returning a store that comes later in every interleaving); races by
// clock stand in for it.
//
// Search: stateless depth-first replay with sleep sets (Godefroid 1996): executions that differ in the order
// of independent steps alone are run once. Threads are ucontext fibers: no real concurrency, so results
// repeat.
//
// Thread-safety: one exploration at a time in a process.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace niche::dispatch::testing {

class WeakMemory {
 public:
  static constexpr int kThreadsMax = 4, kLocationsMax = 16;
  using View = std::array<int, kLocationsMax>;
  using Clock = std::array<int, kThreadsMax>;

  struct Result {
    long executions = 0;     // complete ones, up to the first failure
    bool exhausted = false;  // every one was run
    std::string failure;     // empty: no promise was broken
  };

  // `setup` builds the shared objects afresh and returns what each thread does; it runs once an execution.
  static Result explore(const std::function<std::vector<std::function<void()>>()>& setup,
                        long executions_max) {
    WeakMemory m;
    current() = &m;
    Result r;
    do {
      const bool complete = m.run(setup);
      r.executions += complete ? 1 : 0;
      if (!m.failure_.empty()) {
        r.failure = m.failure_;
        break;
      }
      if (!m.backtrack()) {
        r.exhausted = true;
        break;
      }
    } while (r.executions < executions_max);
    current() = nullptr;
    return r;
  }

  static WeakMemory*& current() {
    static WeakMemory* m = nullptr;
    return m;
  }

  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  // ---- what the model's atomics, fences, mutexes and data call ----

  int add_location(uint64_t value) {
    locations_.push_back({});
    locations_.back().stores.push_back({value, {}, {}, false});
    return static_cast<int>(locations_.size()) - 1;
  }

  uint64_t load(int at, std::memory_order order) {
    if (running_ < 0) return locations_[static_cast<size_t>(at)].stores.back().value;
    step({Kind::kLoad, at, settles(order)});
    if (order == std::memory_order_seq_cst) settle();
    Location& l = locations_[static_cast<size_t>(at)];
    Thread& t = me();
    int oldest = t.view[static_cast<size_t>(at)];
    if (order == std::memory_order_seq_cst) oldest = std::max(oldest, l.newest_seq_cst);
    const int newest = static_cast<int>(l.stores.size()) - 1;
    const int pick =
        newest - choose(newest - oldest + 1);  // the newest first: failures come late, but read naturally
    const Store& s = l.stores[static_cast<size_t>(pick)];
    t.view[static_cast<size_t>(at)] = pick;
    if (s.release && order != std::memory_order_relaxed) take(s);
    return s.value;
  }

  void store(int at, uint64_t value, std::memory_order order) {
    if (running_ < 0) {
      locations_[static_cast<size_t>(at)].stores.push_back({value, {}, {}, false});
      return;
    }
    step({Kind::kStore, at, settles(order)});
    append(at, value, order);
  }

  uint64_t exchange(int at, uint64_t value, std::memory_order order) {
    step({Kind::kStore, at, settles(order)});
    Location& l = locations_[static_cast<size_t>(at)];
    const Store before = l.stores.back();  // a read-modify-write reads the newest
    if (before.release && order != std::memory_order_relaxed && order != std::memory_order_release)
      take(before);
    append(at, value, order);
    return before.value;
  }

  bool compare_exchange(int at, uint64_t expected, uint64_t value, std::memory_order order) {
    if (running_ < 0) {
      if (locations_[static_cast<size_t>(at)].stores.back().value != expected) return false;
      store(at, value, order);
      return true;
    }
    step({Kind::kStore, at, settles(order)});
    Location& l = locations_[static_cast<size_t>(at)];
    const Store before = l.stores.back();
    if (before.release && order != std::memory_order_relaxed && order != std::memory_order_release)
      take(before);
    me().view[static_cast<size_t>(at)] = static_cast<int>(l.stores.size()) - 1;
    if (before.value != expected) {
      if (order == std::memory_order_seq_cst) settle();
      return false;
    }
    append(at, value, order);
    return true;
  }

  void light_fence() {
    step({Kind::kLight});
    join(me().view, heavy_view_);
    join(light_view_, me().view);
  }
  void heavy_fence() {
    step({Kind::kHeavy});
    join(me().view, heavy_view_);
    join(me().view, light_view_);
    join(heavy_view_, me().view);
  }

  int add_mutex() {
    mutexes_.push_back({});
    return static_cast<int>(mutexes_.size()) - 1;
  }
  void lock(int m) {
    if (running_ < 0) return;
    step({Kind::kLock, m});
    Mutex& mutex = mutexes_[static_cast<size_t>(m)];
    mutex.held = true;
    join(me().view, mutex.view);
    join(me().clock, mutex.clock);
  }
  void unlock(int m) {
    if (running_ < 0) return;
    step({Kind::kUnlock, m});
    Mutex& mutex = mutexes_[static_cast<size_t>(m)];
    mutex.held = false;
    mutex.view = me().view;
    mutex.clock = me().clock;
    ++me().clock[static_cast<size_t>(running_)];
  }

  // Plain memory: a write races with every access that does not happen before it, a read with every such
  // write.
  struct Data {
    Clock reads{}, write{};
  };
  void read(Data* d, const char* what) {
    if (!before(d->write, me().clock))
      fail(std::string("race: read of ") + what + " against its free or construction");
    d->reads[static_cast<size_t>(running_)] = me().clock[static_cast<size_t>(running_)];
  }
  void write(Data* d, const char* what) {
    if (!before(d->write, me().clock) || !before(d->reads, me().clock))
      fail(std::string("race: free of ") + what + " against a reader");
    d->write = {};
    d->write[static_cast<size_t>(running_)] = me().clock[static_cast<size_t>(running_)];
  }

 private:
  enum class Kind : uint8_t { kStart, kLoad, kStore, kLight, kHeavy, kLock, kUnlock };
  struct Step {
    Kind kind = Kind::kStart;
    int at = 0;
    int settles = -1;  // the location whose place in the total order this step also changes
  };
  struct Store {
    uint64_t value;
    View view;
    Clock clock;
    bool release;
  };
  struct Location {
    std::vector<Store> stores;
    int newest_seq_cst = 0;
  };
  struct Mutex {
    bool held = false;
    View view{};
    Clock clock{};
  };
  struct Thread {
    std::function<void()> body;
    std::unique_ptr<char[]> stack;
    ucontext_t context;
    Step next;  // announced, not yet taken
    bool done = false;
    int unsettled_at = -1, unsettled = 0;  // its last seq_cst store, not yet in the total order
    View view{};
    Clock clock{};
  };
  struct Node {
    bool schedule;
    int options[kThreadsMax] = {};  // schedule: thread numbers
    int count = 0;
    int taken = 0;
    unsigned sleep = 0;  // schedule: threads whose next step was explored on a sibling
  };
  static constexpr size_t kStackBytes = 64 << 10;

  template <typename A>
  static void join(A& into, const A& from) {
    for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
  }
  static bool before(const Clock& a, const Clock& b) {
    for (size_t i = 0; i < a.size(); ++i)
      if (a[i] > b[i]) return false;
    return true;
  }
  Thread& me() { return *threads_[static_cast<size_t>(running_)]; }
  void take(const Store& s) {
    join(me().view, s.view);
    join(me().clock, s.clock);
  }
  int settles(std::memory_order order) {
    return running_ >= 0 && order == std::memory_order_seq_cst ? me().unsettled_at : -1;
  }
  // This thread's last seq_cst store takes its place in the total order.
  void settle() {
    Thread& t = me();
    if (t.unsettled_at < 0) return;
    int& newest = locations_[static_cast<size_t>(t.unsettled_at)].newest_seq_cst;
    newest = std::max(newest, t.unsettled);
    t.unsettled_at = -1;
  }
  void append(int at, uint64_t value, std::memory_order order) {
    Location& l = locations_[static_cast<size_t>(at)];
    Thread& t = me();
    const bool release = order != std::memory_order_relaxed && order != std::memory_order_acquire;
    t.view[static_cast<size_t>(at)] = static_cast<int>(l.stores.size());
    l.stores.push_back({value, t.view, t.clock, release});
    if (order == std::memory_order_seq_cst) {
      settle();
      t.unsettled_at = at;
      t.unsettled = static_cast<int>(l.stores.size()) - 1;
    }
    ++t.clock[static_cast<size_t>(running_)];  // later accesses are not covered by this release
  }

  static bool independent(Step a, Step b) {
    const auto access = [](Step s) { return s.kind == Kind::kLoad || s.kind == Kind::kStore; };
    const auto fence = [](Step s) { return s.kind == Kind::kLight || s.kind == Kind::kHeavy; };
    const auto mutex = [](Step s) { return s.kind == Kind::kLock || s.kind == Kind::kUnlock; };
    if (a.kind == Kind::kStart || b.kind == Kind::kStart) return true;
    if (access(a) && access(b) && (a.settles == b.at || b.settles == a.at)) return false;
    if (access(a) && access(b)) return a.at != b.at || (a.kind == Kind::kLoad && b.kind == Kind::kLoad);
    if (fence(a) && fence(b)) return a.kind == Kind::kLight && b.kind == Kind::kLight;
    if (mutex(a) && mutex(b)) return a.at != b.at;
    return true;
  }

  // Announces the next step and waits to be chosen for it.
  void step(Step s) {
    me().next = s;
    swapcontext(&me().context, &main_);
  }
  // One of n values.
  int choose(int n) {
    if (n <= 1) return 0;
    if (depth_ == path_.size()) {
      Node node{};
      node.schedule = false;
      node.count = n;
      path_.push_back(node);
    }
    return path_[depth_++].taken;
  }

  static void enter_thread() {
    WeakMemory* m = current();
    m->me().body();
    m->me().done = true;
    swapcontext(&m->me().context, &m->main_);
  }

  bool enabled(const Thread& t) const {
    return !t.done && !(t.next.kind == Kind::kLock && mutexes_[static_cast<size_t>(t.next.at)].held);
  }

  // One execution along path_, extended by first choices. False: given up as redundant or failed.
  bool run(const std::function<std::vector<std::function<void()>>()>& setup) {
    locations_.clear();
    mutexes_.clear();
    threads_.clear();
    light_view_ = heavy_view_ = {};
    running_ = -1;
    std::vector<std::function<void()>> bodies = setup();
    for (auto& body : bodies) {
      auto t = std::make_unique<Thread>();
      t->body = std::move(body);
      if (!spare_stacks_.empty()) {
        t->stack = std::move(spare_stacks_.back());
        spare_stacks_.pop_back();
      } else {
        t->stack = std::make_unique<char[]>(kStackBytes);
      }
      for (size_t l = 0; l < locations_.size(); ++l)
        t->view[l] = static_cast<int>(locations_[l].stores.size()) - 1;
      t->clock[threads_.size()] = 1;
      getcontext(&t->context);
      t->context.uc_stack.ss_sp = t->stack.get();
      t->context.uc_stack.ss_size = kStackBytes;
      t->context.uc_link = nullptr;
      makecontext(&t->context, &WeakMemory::enter_thread, 0);
      threads_.push_back(std::move(t));
    }
    for (running_ = 0; running_ < static_cast<int>(threads_.size()); ++running_)
      swapcontext(&main_, &me().context);  // up to its first step
    const bool complete = schedule();
    running_ = -1;
    for (auto& t : threads_) spare_stacks_.push_back(std::move(t->stack));  // unfinished fibers are abandoned
    return complete;
  }

  bool schedule() {
    depth_ = 0;
    unsigned sleep = 0;
    for (;;) {
      if (!failure_.empty()) return false;
      bool unfinished = false;
      Node node{};
      node.schedule = true;
      for (int i = 0; i < static_cast<int>(threads_.size()); ++i) {
        unfinished |= !threads_[static_cast<size_t>(i)]->done;
        if (enabled(*threads_[static_cast<size_t>(i)]) && !(sleep >> i & 1)) node.options[node.count++] = i;
      }
      if (!unfinished) return true;
      if (depth_ == path_.size()) {
        if (node.count == 0) return false;  // asleep: explored elsewhere
        node.sleep = sleep;
        path_.push_back(node);
      }
      const Node& at = path_[depth_++];
      const int chosen = at.options[at.taken];
      unsigned asleep = at.sleep;
      for (int i = 0; i < at.taken; ++i) asleep |= 1u << at.options[i];
      sleep = 0;
      const Step s = threads_[static_cast<size_t>(chosen)]->next;
      for (int i = 0; i < static_cast<int>(threads_.size()); ++i)
        if (asleep >> i & 1 && independent(threads_[static_cast<size_t>(i)]->next, s)) sleep |= 1u << i;
      running_ = chosen;
      swapcontext(&main_, &me().context);
    }
  }

  bool backtrack() {
    while (!path_.empty()) {
      if (++path_.back().taken < path_.back().count) return true;
      path_.pop_back();
    }
    return false;
  }

  std::vector<Location> locations_;
  std::vector<Mutex> mutexes_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<std::unique_ptr<char[]>> spare_stacks_;
  View light_view_{}, heavy_view_{};
  int running_ = -1;
  ucontext_t main_;
  std::vector<Node> path_;
  size_t depth_ = 0;
  std::string failure_;
};

// std::atomic's face over a WeakMemory location.
template <typename T>
class ModelAtomic {
 public:
  ModelAtomic(T value = T{})
      : at_(WeakMemory::current()->add_location(bits(value))) {}  // NOLINT: as std::atomic
  T load(std::memory_order o) const { return value(WeakMemory::current()->load(at_, o)); }
  void store(T v, std::memory_order o) { WeakMemory::current()->store(at_, bits(v), o); }
  bool compare_exchange(T expected, T v, std::memory_order o) {
    return WeakMemory::current()->compare_exchange(at_, bits(expected), bits(v), o);
  }
  T exchange(T v, std::memory_order o) { return value(WeakMemory::current()->exchange(at_, bits(v), o)); }

 private:
  static uint64_t bits(T v) {
    if constexpr (std::is_pointer_v<T>) {
      return reinterpret_cast<uintptr_t>(v);
    } else {
      return static_cast<uint64_t>(v);
    }
  }
  static T value(uint64_t b) {
    if constexpr (std::is_pointer_v<T>) {
      return reinterpret_cast<T>(b);
    } else {
      return static_cast<T>(b);
    }
  }
  int at_;
};

class ModelMutex {
 public:
  void lock() { WeakMemory::current()->lock(at_); }
  void unlock() { WeakMemory::current()->unlock(at_); }

 private:
  int at_ = WeakMemory::current()->add_mutex();
};

}  // namespace niche::dispatch::testing
