// What a session on a device waits for permits, beside the ranker's traffic, under a clock of its own: the gate and the
// rule that packs steps into permits are the real ones; requests arrive as in the trace that the demo replays, at the
// rate and with the service time that an H200 showed; what the steps take are estimates that give the 0.56 ms a permit
// of that run (docs/cuda.md, "Permits, simulated"). The lists of steps are counted against the judge itself by
// runtime_cuda_permits_test.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "evolve/probe/permit_gate.h"
#include "evolve/probe/permit_span.h"

namespace niche::evolve {
namespace {

constexpr int64_t kUs = 1000, kMs = 1000 * kUs, kS = 1000 * kMs;
constexpr double kPerSecond = 416,
                 kServiceMs = 2.19;       // the demo's rate on the H200; two threads answer 914 a second
constexpr int64_t kSwitchNs = 130 * kUs;  // what another context's burst costs a request that meets it
constexpr int64_t kMessageNs =
    60 * kUs;  // from one process to the next; a grant takes two, and so does its return

// A day of requests: the trace over and over, two inference threads.
class Server {
 public:
  explicit Server(const std::string& trace, double seconds) {
    std::ifstream file(trace);
    std::string line;
    std::vector<double> at, tokens;
    std::getline(file, line);
    while (std::getline(file, line)) {
      int h = 0, m = 0, context = 0;
      double s = 0;
      if (std::sscanf(line.c_str(), "%*s %d:%d:%lf,%d", &h, &m, &s, &context) != 4) continue;
      at.push_back(h * 3600 + m * 60 + s);
      tokens.push_back(context);
    }
    double mean = 0;
    for (double t : tokens) mean += t / static_cast<double>(tokens.size());
    const double length = at.back() - at.front(), rate = static_cast<double>(at.size()) / length;
    std::array<int64_t, 2> free{};
    for (size_t i = 0; static_cast<double>(i) < seconds * kPerSecond; ++i) {
      const double lap = static_cast<double>(i / at.size()) * length;
      const auto arrival = static_cast<int64_t>((lap + at[i % at.size()] - at[0]) * rate / kPerSecond * 1e9);
      int64_t& thread = free[free[1] < free[0]];
      const double service = kServiceMs * (0.8 + 0.2 * tokens[i % at.size()] / mean);
      thread = std::max(thread, arrival) + static_cast<int64_t>(service * kMs);
      opened_.push_back(arrival);
      took_.push_back(thread - arrival);
      closed_.push_back(thread);
    }
    std::vector<int64_t> sorted = took_;
    quiet_p99_ = p99(sorted);
    std::sort(closed_.begin(), closed_.end());
  }
  Traffic at(int64_t now) const { return {before(opened_, now), before(closed_, now)}; }
  // A burst: who arrives meanwhile waits for its end, and for the switch.
  void burst(int64_t from, int64_t to) {
    for (size_t i = before(opened_, from); i < opened_.size() && opened_[i] <= to; ++i) {
      took_[i] += to - opened_[i] + kSwitchNs;
      ++disturbed;
    }
  }
  // Requests that ended since the last call.
  template <typename F>
  void ended(int64_t now, F&& tell) {
    for (; told_ < opened_.size() && opened_[told_] + took_[told_] <= now; ++told_) tell(took_[told_]);
  }
  int64_t p99_until(int64_t now) const {
    std::vector<int64_t> some(took_.begin(),
                              took_.begin() + static_cast<std::ptrdiff_t>(before(opened_, now)));
    return p99(some);
  }
  int64_t quiet_p99() const { return quiet_p99_; }
  int disturbed = 0;

 private:
  static int64_t p99(std::vector<int64_t>& v) {
    const auto at = v.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(v.size()) * 0.99);
    std::nth_element(v.begin(), at, v.end());
    return *at;
  }
  static size_t before(const std::vector<int64_t>& v, int64_t now) {
    return static_cast<size_t>(std::upper_bound(v.begin(), v.end(), now) - v.begin());
  }
  std::vector<int64_t> opened_, took_, closed_;
  int64_t quiet_p99_ = 0;
  size_t told_ = 0;
};

// A step on the device; `apart`: the host does something before it, and gives its permit back for that.
struct Step {
  int64_t ns;
  bool apart = false;
};
constexpr int64_t kLoad = 1500 * kUs, kLaunch = 250 * kUs, kGuards = 250 * kUs, kPacer = 1500 * kUs;
constexpr int64_t kForm = 250 * kUs, kCandidate = 150 * kUs;
constexpr int kProblems = 4, kForms = 2, kBatch = 8, kScreened = 3, kRuns = 42;

using Steps = std::vector<Step>;
void add(Steps* s, int64_t ns, bool apart = true) { s->push_back({ns, apart}); }
// As it was: each step alone, two samples together; a kernel that was loaded asked to be loaded again.
void old_race(Steps* s, int rounds, int64_t pair, bool candidate, bool loaded) {
  if (candidate) add(s, loaded ? 5 * kUs : kLoad), add(s, kLaunch);
  add(s, kGuards), add(s, kPacer);
  for (int r = 0; r <= rounds; ++r) add(s, pair);
}
Steps until_first_kernel_before() {
  Steps s;
  for (int p = 0; p < kProblems; ++p) old_race(&s, 3, kForms * kForm, false, true);
  old_race(&s, 16, 2 * kForm, false, true);
  for (int c = 0; c < kBatch; ++c) {
    add(&s, kLoad), add(&s, kLaunch), add(&s, 5 * kUs), add(&s, kLaunch);
    for (int p = 0; p < kScreened; ++p) old_race(&s, 7, kForm + kCandidate, true, true);
  }
  for (int r = 0; r < kRuns; ++r) add(&s, r == 0 ? kLoad : 5 * kUs), add(&s, kLaunch);
  for (int p = 0; p < 3 * kProblems; ++p) old_race(&s, 12, kForm + kCandidate, true, true);
  return s;
}
// As it is.
void race(Steps* s, int rounds, std::vector<int64_t> sides, int candidates) {
  for (int c = 0; c < candidates; ++c) add(s, kLaunch, c == 0);
  for (int c = 0; c <= candidates; ++c) add(s, kGuards, c == 0);
  for (int r = 0; r <= rounds; ++r)
    for (int64_t side : sides) add(s, side, false);
}
Steps until_first_kernel() {
  Steps s;
  add(&s, kPacer);
  for (int p = 0; p < kProblems; ++p) race(&s, 3, std::vector<int64_t>(kForms, kForm), 0);
  race(&s, 16, {kForm, kForm}, 0);
  for (int c = 0; c < kBatch; ++c) add(&s, kLoad, c == 0);
  for (int stage = 0; stage < 2; ++stage)
    for (int c = 0; c < kBatch; ++c) add(&s, kLaunch, c == 0);
  std::vector<int64_t> all(kBatch, kCandidate);
  all.push_back(kForm);
  for (int p = 0; p < kScreened; ++p) race(&s, 5, all, kBatch);
  for (int r = 0; r < kRuns; ++r) add(&s, kLaunch, r % 8 == 0);
  for (int p = 0; p < kProblems; ++p) race(&s, 9, {kForm, kCandidate}, 1);  // 9 that agree
  for (int p = 0; p < kProblems; ++p) race(&s, 7, {kForm, kCandidate}, 1);
  for (int p = 0; p < kProblems; ++p) race(&s, 9, {kForm, kCandidate}, 1);
  return s;
}

struct Result {
  uint64_t permits = 0;
  double seconds = 0, device_ms = 0, p99 = 0, duty_end = 0;
  int disturbed = 0;
};

Result simulate(const Steps& steps, const PermitLimits& limits, bool spans) {
  Server server(NICHE_TEST_TRACE, 120);
  dispatch::ManualClock clock{0};
  PermitGate gate(limits, clock, [&] { return server.at(clock.now_ns()); });
  PermitSpan span;
  Permit permit;
  Result r;
  int64_t granted_at = 0;
  const auto wait = [&](int64_t ns) {
    clock.advance_ns(ns);
    server.ended(clock.now_ns(), [&](int64_t took) {
      gate.request_took(static_cast<double>(took), static_cast<double>(server.quiet_p99()));
    });
  };
  const auto give_back = [&] {
    if (!span.held()) return;
    permit.used_ns = span.give_back();
    r.device_ms += static_cast<double>(permit.used_ns) / 1e6;
    server.burst(granted_at, clock.now_ns());
    if (!spans) permit.used_ns = 0;  // it was not said, so that messages were charged
    wait(2 * kMessageNs);
    gate.give_back(permit);
  };
  for (const Step& step : steps) {
    if (!spans || step.apart || !span.fits(std::min(step.ns, limits.burst_ns), clock.now_ns())) {
      give_back();
      for (permit = {}; !permit;) {
        permit = gate.ask(limits.burst_ns);
        if (!permit) wait(std::clamp<int64_t>(permit.retry_after_ns, kUs, 100 * kMs) + 2 * kMessageNs);
      }
      wait(2 * kMessageNs);
      granted_at = clock.now_ns();
      span.take(limits.burst_ns, granted_at);
    }
    span.begin(clock.now_ns());
    wait(step.ns);
    span.end(clock.now_ns());
  }
  give_back();
  r.permits = gate.counts().granted;
  r.seconds = static_cast<double>(clock.now_ns()) / kS;
  r.p99 = static_cast<double>(server.p99_until(clock.now_ns())) /
          static_cast<double>(Server(NICHE_TEST_TRACE, 120).p99_until(clock.now_ns()));
  r.duty_end = gate.counts().duty;
  r.disturbed = server.disturbed;
  return r;
}

PermitLimits old_limits(double duty) {
  PermitLimits l;
  l.duty = duty;
  l.bursts_saved = 1;
  return l;
}
PermitLimits limits(double duty, double duty_max = 0) {
  PermitLimits l;
  l.duty = duty;
  l.duty_max = duty_max;
  return l;
}
void print(const char* what, const Result& r) {
  std::printf(
      "%-34s %5d permits  %6.1f ms on the device  %6.2f s  %4d requests met one  p99 %.3f  duty at the end "
      "%.3f\n",
      what, static_cast<int>(r.permits), r.device_ms, r.seconds, r.disturbed, r.p99, r.duty_end);
}

TEST(PermitSimulation, ASessionNeedsHalfOfTheDeviceAndAThirdOfTheTime) {
  const Steps before = until_first_kernel_before(), after = until_first_kernel();
  EXPECT_EQ(before.size(), 651u) << "as counted by the judge itself before permits were spans";
  for (double duty : {0.02, 0.05, 0.1}) {
    const Result a = simulate(before, old_limits(duty), false), b = simulate(after, limits(duty), true);
    char name[64];
    std::snprintf(name, sizeof name, "duty %.0f %%, each step alone", duty * 100);
    print(name, a);
    std::snprintf(name, sizeof name, "duty %.0f %%, spans", duty * 100);
    print(name, b);
    EXPECT_LT(b.permits, a.permits);
    EXPECT_LT(b.device_ms, a.device_ms * 0.6);
    EXPECT_LT(b.seconds, a.seconds / 2.5);
    EXPECT_LT(b.disturbed, a.disturbed);
  }
}

TEST(PermitSimulation, DutyRisesWhileRequestsAreAsQuickAsWithout) {
  const Steps after = until_first_kernel();
  const Result fixed = simulate(after, limits(0.02), true), rising = simulate(after, limits(0.02, 0.1), true);
  print("duty 2 %", fixed);
  print("duty 2 %, rising to 10 %", rising);
  EXPECT_LT(rising.seconds, fixed.seconds * 0.75);
  EXPECT_LT(rising.p99, 1.03);
}

}  // namespace
}  // namespace niche::evolve
