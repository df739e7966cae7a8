// Is what readers saw a linearizable history? The table is one object: commits change several problems at
// once, a call reads one, a RequestScope reads many at one moment. Every kernel says which commit put it
// there, so that the whole history can be checked after the run, exactly: each read is placed between two
// commits, or it is not.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/dispatch/data_plane_fixture.h"

namespace niche::dispatch {
namespace {

constexpr int kProblems = 8;

struct Commit {  // number = place in the vector, from 1; 0 is the empty table
  uint64_t start = 0, end = 0;
  std::vector<int> problems;
};
struct Read {
  uint64_t start = 0, end = 0;
  std::vector<std::pair<int, int>> saw;  // problem, number of the commit that its answer came from
};
struct History {
  std::vector<Commit> commits{{}};
  std::vector<Read> reads;
};

// Empty: linearizable. Each read may lie after commit x for every x in an interval: not before what it saw,
// not after the next commit that changed that, nothing that had ended when it began may be missing, nothing
// that began after it ended may be there; and a read that began after another ended may not lie before it.
// The smallest choice in the order of beginnings is right if any is.
std::string violation(History h) {
  const int n = static_cast<int>(h.commits.size());
  std::sort(h.reads.begin(), h.reads.end(), [](const Read& a, const Read& b) { return a.start < b.start; });
  std::vector<std::pair<uint64_t, int>>
      placed;  // end and place of the reads so far, a heap: the earliest end first
  const auto later = [](const auto& a, const auto& b) { return a.first > b.first; };
  int ended = 0;  // the latest place of a read that ended before this one begins
  for (const Read& r : h.reads) {
    while (!placed.empty() && placed.front().first < r.start) {
      ended = std::max(ended, placed.front().second);
      std::pop_heap(placed.begin(), placed.end(), later);
      placed.pop_back();
    }
    int lo = 0, hi = n - 1;
    for (const auto& [problem, commit] : r.saw) {
      lo = std::max(lo, commit);
      for (int c = commit + 1; c < n; ++c) {
        const auto& changed = h.commits[static_cast<size_t>(c)].problems;
        if (std::find(changed.begin(), changed.end(), problem) == changed.end()) continue;
        hi = std::min(hi, c - 1);
        break;
      }
    }
    const std::string what = "read [" + std::to_string(r.start) + ", " + std::to_string(r.end) +
                             "] of problem " + std::to_string(r.saw[0].first) + " saw commit " +
                             std::to_string(r.saw[0].second);
    if (lo > hi) return what + ": no one table has all that it saw";
    // Commits are in order: the last that ended before it began, the last that began before it ended.
    const auto done = std::partition_point(h.commits.begin() + 1, h.commits.end(),
                                           [&](const Commit& c) { return c.end < r.start; });
    const auto begun = std::partition_point(h.commits.begin() + 1, h.commits.end(),
                                            [&](const Commit& c) { return c.start < r.end; });
    const int oldest = static_cast<int>(done - h.commits.begin()) - 1;
    const int newest = static_cast<int>(begun - h.commits.begin()) - 1;
    if (hi < oldest) return what + ": stale, commit " + std::to_string(oldest) + " had ended";
    if (lo > newest) return what + ": from the future";
    const int place = std::max({lo, oldest, ended});
    if (place > std::min(hi, newest)) return what + ": older than a read that had ended";
    placed.push_back({r.end, place});
    std::push_heap(placed.begin(), placed.end(), later);
  }
  return {};
}

TEST(Linearizability, TheCheckFindsEachKindOfViolation) {
  const History h{{{}, {1, 2, {0, 1}}, {10, 20, {0}}, {30, 31, {1}}}, {}};
  const auto check = [&](std::vector<Read> reads) {
    History with = h;
    with.reads = std::move(reads);
    return violation(with);
  };
  EXPECT_EQ(check({{3, 4, {{0, 1}}}, {12, 13, {{0, 2}}}, {14, 15, {{0, 2}}}, {32, 33, {{0, 2}, {1, 3}}}}),
            "");
  EXPECT_EQ(check({{12, 13, {{0, 1}}}, {14, 25, {{0, 1}}}}), "") << "while the commit runs, both are right";
  EXPECT_NE(check({{21, 22, {{0, 1}}}}).find("stale"), std::string::npos);
  EXPECT_NE(check({{8, 9, {{0, 2}}}}).find("future"), std::string::npos);
  EXPECT_NE(check({{12, 13, {{0, 2}}}, {14, 15, {{0, 1}}}}).find("older than a read"), std::string::npos);
  EXPECT_NE(check({{25, 35, {{0, 1}, {1, 3}}}}).find("no one table"), std::string::npos);
  EXPECT_NE(check({{32, 33, {{0, 0}}}}).find("stale"), std::string::npos) << "an answer that was lost";
}

class LinearizabilityStress : public testing::DataPlane {
 protected:
  // tag = commit * kProblems + problem
  std::pair<int, int> saw(int problem) {
    const Dispatcher::Call section(*d);  // decide()'s own ends before its kernel is looked at
    const Decision dec = decide(1 + problem, 7);
    const int tag = dec.kernel->is_fallback() ? problem : dec.kernel->phase_count;
    EXPECT_EQ(tag % kProblems, problem) << "wrong route";
    return {problem, tag / kProblems};
  }

  void run(int readers, int commits, uint64_t seed) {
    std::atomic<uint64_t> time{1};
    std::atomic<bool> stop{false};
    std::vector<std::vector<Read>> logs(static_cast<size_t>(readers));
    std::vector<std::thread> threads;
    for (int t = 0; t < readers; ++t) {
      threads.emplace_back([&, t] {
        auto& log = logs[static_cast<size_t>(t)];
        std::mt19937_64 rng(seed * 100 + static_cast<uint64_t>(t));
        while (!stop.load(std::memory_order_relaxed) && log.size() < 40'000) {
          Read r;
          r.start = time.fetch_add(1);
          if (rng() % 8 == 0) {
            RequestScope scope(*d, {.id = 1});
            r.end = time.fetch_add(1);  // the table was chosen when the scope opened
            for (int i = 0; i < 4; ++i) r.saw.push_back(saw(static_cast<int>(rng() % kProblems)));
          } else {
            r.saw.push_back(saw(static_cast<int>(rng() % kProblems)));
            r.end = time.fetch_add(1);
          }
          log.push_back(std::move(r));
        }
      });
    }
    History h;
    std::mt19937_64 rng(seed);
    for (int c = 1; c <= commits; ++c) {
      Commit commit;
      for (uint64_t n = 1 + rng() % 3; n > 0; --n) {
        const int p = static_cast<int>(rng() % kProblems);
        if (std::count(commit.problems.begin(), commit.problems.end(), p) == 0) commit.problems.push_back(p);
      }
      for (const int p : commit.problems) {
        const auto k = testing::toy_kernel(definition, c * kProblems + p);
        ASSERT_TRUE(d->publisher().put(problem(1 + p, 7), route(k)).ok());
      }
      commit.start = time.fetch_add(1);
      while (!d->publisher().commit().ok()) std::this_thread::yield();
      commit.end = time.fetch_add(1);
      h.commits.push_back(std::move(commit));
      if (c % 16 == 0) std::this_thread::yield();
    }
    stop = true;
    for (auto& t : threads) t.join();
    for (auto& log : logs) h.reads.insert(h.reads.end(), log.begin(), log.end());
    ASSERT_GT(h.reads.size(), 100u);
    EXPECT_EQ(violation(h), "");
  }
};

TEST_F(LinearizabilityStress, WithTheAsymmetricFence) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    start({});
    run(3, 400, seed);
  }
}
TEST_F(LinearizabilityStress, WithTheExchange) {
  for (uint64_t seed = 5; seed <= 8; ++seed) {
    start({.asymmetric_fence = false});
    run(3, 400, seed);
  }
}

}  // namespace
}  // namespace niche::dispatch
