// bench/dispatch: what a dispatch decision costs, niche's and its rivals', in one run.
//
//   dispatch [--json FILE] [--quick] [--rounds N] [--only PATTERN] [--rows]
//
// PATTERN: a regular expression on "subject case threads routes", for example "^(niche|bare) hit 1 1024".
// --quick: one thread, 1,024 routes. --rows prints every row, not the report alone. Thread t runs on the t-th of
// the CPUs that the process may use (taskset).
//
// A figure is that of the least disturbed round, by its mean (each round visits all subjects in a fresh
// random order); the median round's mean is printed beside it. Percentiles are of batches of 32 calls, since
// a pair of clock reads costs as much as several calls; the cost of an empty batch is taken off. `hit` is
// everything from raw axes to function and plan. JSON rows: {subject, case, threads, routes, p50_ns, p99_ns,
// p999_ns, ns_per_op}.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <regex>
#include <sstream>
#include <thread>

#include "bench/dispatch/niche_subject.h"
#include "bench/dispatch/report.h"
#include "bench/dispatch/rivals.h"
#include "bench/dispatch/rows.h"
#include "dispatch/devices/cpu/cycle_clock.h"
#if NICHE_BENCH_ONEDNN
#include "bench/dispatch/onednn_rival.h"
#endif

namespace niche::bench {
namespace {

using dispatch::cycles;

struct Timer {
  dispatch::SystemClock clock;
  dispatch::CycleClock rate = dispatch::CycleClock::calibrate(clock, 50'000'000);
  uint64_t empty = 0;  // ticks of a batch without calls
  Timer() {
    std::vector<uint64_t> t(10001);
    for (auto& x : t) {
      const uint64_t a = cycles();
      asm volatile("" ::: "memory");
      x = cycles() - a;
    }
    std::nth_element(t.begin(), t.begin() + 5000, t.end());
    empty = t[5000];
  }
};
const Timer& timer() {
  static const Timer t;
  return t;
}

// The CPUs that the process was given, whatever its threads were pinned to since.
const std::vector<int>& cpus() {
  static const std::vector<int> all = [] {
    cpu_set_t set;
    std::vector<int> v;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
      for (int i = 0; i < CPU_SETSIZE; ++i)
        if (CPU_ISSET(i, &set)) v.push_back(i);
    return v;
  }();
  return all;
}
void pin(int thread) {
  if (cpus().empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus()[static_cast<size_t>(thread) % cpus().size()], &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

double percentile(std::vector<uint64_t>& v, double p) {
  const auto at = static_cast<size_t>(p * static_cast<double>(v.size() - 1));
  std::nth_element(v.begin(), v.begin() + static_cast<long>(at), v.end());
  const uint64_t t = v[at] > timer().empty ? v[at] - timer().empty : 0;
  return timer().rate.ns(t) / kBatch;
}

// One thread's calls over a stream: first without clocks between (ns_per_op), then in timed batches.
template <typename Reader>
void run_stream(Reader& reader, const std::vector<Axes>& stream, int passes, std::vector<uint64_t>* batches,
                double* ns_per_op) {
  uintptr_t sink = 0;
  const auto call = [&](const Axes& a) {
    const Kernel* k = reader.call(a);
    sink ^= reinterpret_cast<uintptr_t>(k->launch) ^ reinterpret_cast<uintptr_t>(k);  // function and plan
  };
  for (const Axes& a : stream) call(a);  // warm
  const uint64_t t0 = cycles();
  for (int p = 0; p < passes; ++p)
    for (const Axes& a : stream) call(a);
  *ns_per_op =
      timer().rate.ns(cycles() - t0) / static_cast<double>(stream.size() * static_cast<size_t>(passes));
  for (int p = 0; p < passes; ++p) {
    for (size_t i = 0; i + kBatch <= stream.size(); i += kBatch) {
      const uint64_t a = cycles();
      for (size_t j = 0; j < kBatch; ++j) call(stream[i + j]);
      batches->push_back(cycles() - a);
    }
  }
  asm volatile("" : : "r"(sink));
}

template <typename Subject>
Figures measure(Subject& s, const std::vector<Axes>& stream, int threads, int passes) {
  std::vector<std::vector<uint64_t>> batches(static_cast<size_t>(threads));
  std::vector<double> ns(static_cast<size_t>(threads));
  std::atomic<int> ready{0};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      pin(t);
      typename Subject::Reader reader(s);
      ready.fetch_add(1);
      while (ready.load() < threads) std::this_thread::yield();
      run_stream(reader, stream, passes, &batches[static_cast<size_t>(t)], &ns[static_cast<size_t>(t)]);
    });
  }
  for (auto& t : pool) t.join();
  std::vector<uint64_t> all;
  for (auto& b : batches) all.insert(all.end(), b.begin(), b.end());
  return {percentile(all, 0.5), percentile(all, 0.99), percentile(all, 0.999),
          std::accumulate(ns.begin(), ns.end(), 0.0) / threads};
}

// The same under 1,000 publications a second from a core of its own.
template <typename Subject>
Figures measure_publishing(Subject& s, const std::vector<Axes>& stream, int threads, int passes) {
  static const bool told = [threads] {
    if (cpus().size() > static_cast<size_t>(threads)) return false;
    std::cerr << "hit_publishing: the publisher has no CPU of its own, and takes half of the reader's\n";
    return true;
  }();
  (void)told;
  std::atomic<bool> stop{false};
  std::atomic<long> published{0};
  std::thread publisher([&] {
    pin(threads);
    auto next = std::chrono::steady_clock::now();
    for (uint32_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      next += std::chrono::milliseconds(1);
      while (std::chrono::steady_clock::now() < next && !stop.load(std::memory_order_relaxed)) {
      }
      s.publish(i * 7919);
      published.fetch_add(1, std::memory_order_relaxed);
    }
  });
  // Long enough to hold some hundred publications.
  const Figures f = measure(s, stream, threads, passes * 8);
  stop = true;
  publisher.join();
  if (published.load() < 20)
    std::cerr << "publishing: only " << published.load() << " publications in the window\n";
  return f;
}

class Suite {
 public:
  Suite(bool quick, int rounds, const std::string& only)
      : quick_(quick), rounds_(rounds), only_(only.empty() ? "." : only) {}

  template <typename Subject, typename... Args>
  void add(const std::string& subject, uint32_t routes, int passes, bool publishes, const Args&... args) {
    auto w = workload(routes);
    auto made = std::make_shared<std::unique_ptr<Subject>>();
    const auto get = [=]() -> Subject& {
      if (!*made) *made = std::make_unique<Subject>(*w, args...);
      return **made;
    };
    for (const int threads : quick_ ? std::vector{1} : std::vector{1, 2, 4}) {
      job(subject, "hit", threads, routes, [=] { return measure(get(), w->random, threads, passes); });
      if (routes != 1024) continue;
      job(subject, "hit_repeat", threads, routes, [=] { return measure(get(), w->repeat, threads, passes); });
      job(subject, "miss", threads, routes, [=] { return measure(get(), w->missing, threads, passes); });
      if constexpr (requires(Subject & s) { s.publish(0u); }) {
        if (publishes)
          job(subject, "hit_publishing", threads, routes,
              [=] { return measure_publishing(get(), w->random, threads, passes); });
      }
    }
  }
  // One case of one subject.
  void job(const std::string& subject, const std::string& name, int threads, uint32_t routes,
           std::function<Figures()> run) {
    const std::string id =
        subject + " " + name + " " + std::to_string(threads) + " " + std::to_string(routes);
    if (!std::regex_search(id, only_)) return;
    rows_.push_back({subject, name, threads, routes, {}});
    runs_.push_back(std::move(run));
  }

  std::shared_ptr<const Workload> workload(uint32_t routes) {
    auto& w = workloads_[routes];
    if (!w) w = std::make_shared<const Workload>(routes);
    return w;
  }

  void run() {
    std::vector<size_t> order(rows_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::mt19937 rng(1);
    for (int round = 0; round < rounds_; ++round) {
      std::shuffle(order.begin(), order.end(), rng);
      for (const size_t i : order) rows_[i].rounds.push_back(runs_[i]());
    }
  }
  const std::vector<Row>& rows() const { return rows_; }

 private:
  bool quick_;
  int rounds_;
  std::regex only_;
  std::map<uint32_t, std::shared_ptr<const Workload>> workloads_;
  std::vector<Row> rows_;
  std::vector<std::function<Figures()>> runs_;
};

// Canary state on every route: the decision draws an arm on each call.
void add_canary(Suite* suite, int passes) {
  auto w = suite->workload(1024);
  auto s = std::make_shared<std::unique_ptr<NicheSubject>>();
  suite->job("niche", "canary", 1, 1024, [=] {
    if (!*s) *s = std::make_unique<NicheSubject>(*w, NicheOptions{.canary = true});
    return measure(**s, w->random, 1, passes);
  });
}

// Opening and closing a RequestScope, nothing else.
void add_scope(Suite* suite, int passes) {
  struct Scoped {
    explicit Scoped(NicheSubject& s) : d(s.dispatcher()) {}
    dispatch::Dispatcher& d;
    class Reader {
     public:
      explicit Reader(Scoped& s) : d_(s.d) {}
      [[gnu::noinline]] const Kernel* call(const Axes& a) {
        dispatch::RequestScope scope(d_, {.id = static_cast<uint64_t>(a.v[1])});
        return library();
      }

     private:
      dispatch::Dispatcher& d_;
    };
  };
  auto w = suite->workload(1024);
  auto s = std::make_shared<std::unique_ptr<NicheSubject>>();
  suite->job("niche", "request_scope", 1, 1024, [=] {
    if (!*s) *s = std::make_unique<NicheSubject>(*w, NicheOptions{});
    Scoped scoped(**s);
    return measure(scoped, w->random, 1, passes);
  });
}

// Choosing the arm of a rollout for a request id, nothing else; and nothing at all: what the loop and the
// call around every subject cost.
void add_assign(Suite* suite, int passes) {
  struct Assigning {
    class Reader {
     public:
      explicit Reader(Assigning&) {}
      [[gnu::noinline]] const Kernel* call(const Axes& a) {
        const uint64_t hash = dispatch::mix64(static_cast<uint64_t>(a.v[1]) ^ 0x9e3779b97f4a7c15ULL);
        return arms_[static_cast<int>(word_.arm(hash))];
      }

     private:
      dispatch::RolloutWord word_ = dispatch::RolloutWord::make(dispatch::RolloutState::kCanary, 0.1);
      const Kernel* arms_[3] = {library(), library(), library()};
    };
  };
  struct Empty {
    class Reader {
     public:
      explicit Reader(Empty&) {}
      [[gnu::noinline]] const Kernel* call(const Axes&) {
        asm volatile("");  // else the compiler sees that nothing is done, and calls it once
        return library();
      }
    };
  };
  auto w = suite->workload(1024);
  suite->job("niche", "assign", 1, 1024, [=] {
    Assigning a;
    return measure(a, w->random, 1, passes);
  });
  suite->job("benchmark", "empty", 1, 1024, [=] {
    Empty e;
    return measure(e, w->random, 1, passes);
  });
}

// A hit inside an open RequestScope: how a server that tells its requests calls.
void add_scoped(Suite* suite, int passes) {
  struct Scoped {
    explicit Scoped(NicheSubject& s) : subject(s) {}
    NicheSubject& subject;
    class Reader {
     public:
      explicit Reader(Scoped& s) : scope_(s.subject.dispatcher(), {.id = 1}), reader_(s.subject) {}
      const Kernel* call(const Axes& a) { return reader_.call(a); }

     private:
      dispatch::RequestScope scope_;
      NicheSubject::Reader reader_;
    };
  };
  auto w = suite->workload(1024);
  auto s = std::make_shared<std::unique_ptr<NicheSubject>>();
  suite->job("niche", "hit_in_scope", 1, 1024, [=] {
    if (!*s) *s = std::make_unique<NicheSubject>(*w, NicheOptions{});
    Scoped scoped(**s);
    return measure(scoped, w->random, 1, passes);
  });
}

// Publishing one change into a table of `routes`: put and commit, route made beforehand.
void add_publish(Suite* suite, uint32_t routes) {
  auto w = suite->workload(routes);
  auto s = std::make_shared<std::unique_ptr<NicheSubject>>();
  suite->job("niche", "publish", 1, routes, [=] {
    if (!*s) *s = std::make_unique<NicheSubject>(*w, NicheOptions{});
    constexpr uint32_t kChanges = 500;
    std::vector<std::shared_ptr<dispatch::Route>> made;
    for (uint32_t i = 0; i < kChanges; ++i) made.push_back((*s)->make_route(i * 7919 % routes));
    std::vector<double> ns;
    for (uint32_t i = 0; i < kChanges; ++i) {
      const uint64_t t0 = cycles();
      (*s)->put(i * 7919 % routes, std::move(made[i]));
      (*s)->commit();
      ns.push_back(timer().rate.ns(cycles() - t0));
    }
    std::sort(ns.begin(), ns.end());
    return Figures{ns[kChanges / 2], ns[kChanges * 99 / 100], ns[kChanges * 999 / 1000],
                   std::accumulate(ns.begin(), ns.end(), 0.0) / kChanges};
  });
}

int run(int argc, char** argv) {
  std::string json, only;
  bool quick = false, all_rows = false;
  int rounds = 5;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else if (a == "--quick") {
      quick = true;
    } else if (a == "--rows") {
      all_rows = true;
    } else if (a == "--rounds" && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (a == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else {
      std::cerr << "usage: dispatch [--json FILE] [--quick] [--rounds N] [--only PATTERN] [--rows]\n";
      return 2;
    }
  }
  (void)cpus();  // before any thread is pinned
  Suite suite(quick, rounds, only);
  for (const uint32_t routes :
       quick ? std::vector<uint32_t>{1024} : std::vector<uint32_t>{64, 1024, 16384, 262144}) {
    suite.add<NicheSubject>("niche", routes, 8, true, NicheOptions{});
    suite.add<Bare>("bare", routes, 8, false);
    suite.add<SharedMutexMap>("shared_mutex_map", routes, 4, true);
    suite.add<AtomicSharedPtrMap>("atomic_shared_ptr", routes, 4, true);
    suite.add<LeftRightMap>("left_right", routes, 4, true);
    if (routes > 16384) continue;
    suite.add<NicheSubject>("niche_exchange", routes, 4, true, NicheOptions{.asymmetric = false});
    suite.add<TunableOpLike>("tunableop_like", routes, 1, true);
    suite.add<CudnnLike>("cudnn_like", routes, 1, false);
    suite.add<ApolloLike>("apollo_like", routes, 2, false);
#if NICHE_BENCH_ONEDNN
    if (routes <= 1024) suite.add<OneDnn>("onednn", routes, 1, false);
#endif
  }
  add_canary(&suite, 8);
  add_scope(&suite, 8);
  add_assign(&suite, 8);
  add_scoped(&suite, 8);
  for (const uint32_t routes : {10'000u, 100'000u}) add_publish(&suite, routes);
  suite.run();
  if (all_rows) print_rows(suite.rows());
  print_report(suite.rows());
  if (!json.empty() && !write_json(json, suite.rows())) {
    std::cerr << "cannot write " << json << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace niche::bench

int main(int argc, char** argv) { return niche::bench::run(argc, argv); }
