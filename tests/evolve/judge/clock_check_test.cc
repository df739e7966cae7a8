#include "evolve/judge/clock_check.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>

#include "evolve/judge/session_evaluator.h"
#include "kernels.h"
#include "test_ops.h"

namespace niche::evolve::judge {
namespace {

struct Row {
  const char* what;
  ClaimedTimes claimed;
  SeenTimes seen;
  bool believed;
};

// Nanoseconds of a call: what the cell says of library and kernel, what blocks of both took outside of it.
const Row kRows[] = {
    {"an honest tenfold", {10'000, 1'000, false}, {10'000, 1'000}, true},
    {"the same behind calls that cost as much again outside the timed part",
     {10'000, 1'000, false},
     {20'500, 11'300},
     true},
    {"an honest 1.05x in noise", {10'000, 9'520, false}, {10'100, 9'900}, true},
    {"an honest 1.05x whose blocks look slower by less than noise",
     {10'000, 9'520, false},
     {10'000, 10'300},
     true},
    {"as fast as the library, claims twice that", {10'000, 5'000, false}, {10'000, 10'000}, false},
    {"the same while every block costs twice as much", {10'000, 5'000, false}, {20'000, 20'000}, false},
    {"slower by a tenth, claims a tenth", {10'000, 9'000, false}, {10'000, 11'000}, false},
    {"twelve times slower, claims ten times faster", {10'000, 1'000, false}, {10'000, 120'000}, false},
    {"a real 1.2x told as 4x", {10'000, 2'500, false}, {10'000, 8'300}, false},
    {"calls of a tenth of a microsecond are below the clock", {150, 90, false}, {180, 190}, true},
    // Blocks are warm: the cold library is much slower than they show.
    {"cold: four times faster, warm blocks show less", {40'000, 10'000, true}, {12'000, 7'000}, true},
    {"cold: the kernel takes in warm blocks three times what it claims",
     {40'000, 2'000, true},
     {12'000, 8'000},
     false},
};

TEST(ClockCheck, BelievesAGainThatTheSystemsClockBearsOut) {
  for (const Row& r : kRows) EXPECT_EQ(believable(r.claimed, r.seen), r.believed) << r.what;
}

// The stated bounds of what a stamp-moving kernel gains at most.
TEST(ClockCheck, AKernelAsFastAsTheLibraryCanClaimOneAndAQuarter) {
  const double library = 1e6;  // kNoiseNs is nothing beside it
  double most = 1;
  for (double claim = 1; claim < 4; claim += 0.01)
    if (believable({library, library / claim, false}, {library, library})) most = claim;
  EXPECT_NEAR(most, 1.25, 0.02);
  for (double claim = 1; claim < 4; claim += 0.01)
    EXPECT_FALSE(believable({library, library / claim, false}, {library, library * (1.001 + kNoiseShare)}))
        << claim;
}

using Next = ClockCheck::Next;
constexpr ClaimedTimes kClaim = {10'000, 1'000, false};
constexpr SeenTimes kBorneOut = {15'000, 6'000}, kNotBorneOut = {6'000, 6'000};

// What is wanted after so many rounds of blocks that saw `seen`.
Next after(ClockCheck& check, int rounds, const SeenTimes& seen) {
  Next next = Next::kBlocks;
  for (int i = 0; i < rounds && next == Next::kBlocks; ++i) {
    check.seen() = seen;
    next = check.saw();
  }
  return next;
}

TEST(ClockCheck, BelievesAfterTwoRoundsAndNotAfterOne) {
  ClockCheck check;
  check.claim(kClaim);
  EXPECT_EQ(after(check, 1, kBorneOut), Next::kBlocks);
  EXPECT_EQ(after(check, 1, kBorneOut), Next::kBelieved);
}

TEST(ClockCheck, AClaimThatIsNotBorneOutIsMeasuredAgainAndThenRefused) {
  ClockCheck check;
  check.claim(kClaim);
  EXPECT_EQ(after(check, 3, kNotBorneOut), Next::kBlocks);
  EXPECT_EQ(after(check, 1, kNotBorneOut), Next::kMeasureAgain);
  check.claim({20'000, 2'000, false});
  EXPECT_EQ(check.seen().library_ns, 0) << "the first measurement's blocks are no part of the second";
  EXPECT_EQ(after(check, 3, kNotBorneOut), Next::kBlocks);
  EXPECT_EQ(after(check, 1, kNotBorneOut), Next::kRefused);
  ASSERT_EQ(check.measurements(), 2);
  EXPECT_EQ(check.measurement(0).claimed.library_ns, 10'000);
  EXPECT_EQ(check.measurement(1).claimed.library_ns, 20'000);
}

// A second chance is not a second throw of the same dice: what two rounds let through once, four must.
TEST(ClockCheck, TheSecondMeasurementTakesAllItsRounds) {
  ClockCheck check;
  check.claim(kClaim);
  ASSERT_EQ(after(check, ClockCheck::kRoundsMax, kNotBorneOut), Next::kMeasureAgain);
  check.claim(kClaim);
  EXPECT_EQ(after(check, ClockCheck::kRoundsMax - 1, kBorneOut), Next::kBlocks);
  EXPECT_EQ(after(check, 1, kBorneOut), Next::kBelieved);
}

// The rule in a judgement. What children share with the test: how many were started, and how often inputs were made.
struct Counts {
  std::atomic<int> children{0}, inputs{0};
};
std::shared_ptr<Counts> shared_counts() {
  void* p = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(p, MAP_FAILED);
  return {new (p) Counts, [](Counts* c) { munmap(c, sizeof(Counts)); }};
}

class CountingNorm final : public test_ops::NormOp {
 public:
  explicit CountingNorm(std::shared_ptr<Counts> counts) : counts_(std::move(counts)) {}
  dispatch::Status make_inputs(const dispatch::Problem& p, int distribution, uint64_t seed,
                               std::span<const DLTensor> args) const override {
    ++counts_->inputs;
    return NormOp::make_inputs(p, distribution, seed, args);
  }

 private:
  std::shared_ptr<Counts> counts_;
};

// While blocks of the first `processes` cells are watched, the library seems to take what the kernel takes: as if a neighbour
// had been busy in the pairs and quiet in the blocks. Then it is the system's clock.
struct Disturbed {
  std::shared_ptr<Counts> counts = shared_counts();
  int processes = 0;
  int first = -1, watched = 0;  // children at the first block; processes whose blocks were watched
  int last = -1;
  std::vector<int> inputs;  // made, when the first block of a process began
  bool before = true;

  double operator()(const Cell& cell, bool cpu) {
    const int children = counts->children;
    if (first < 0) first = children;
    if (children != last) last = children, ++watched, inputs.push_back(counts->inputs);
    const bool begins = std::exchange(before, !before);
    if (children >= first + processes) return system_clock_ns(cell, cpu);
    return begins ? 0 : 1000.0 * cell.command().block.calls;
  }
};

Verdict judge_disturbed(Disturbed& clock, EvaluatorOptions options = {}) {
  auto op = std::make_shared<CountingNorm>(clock.counts);
  options.seed = 42;
  options.child_start = [counts = clock.counts](int) {
    ++counts->children;
    return dispatch::Executor();
  };
  EvaluatorSpec spec{
      op, *dispatch::Definition::make(op->schema(), dispatch::kF32, {{"N", 1000}}), {{{16}, 1}}, {}};
  auto e = SessionEvaluator::make(spec, options, std::ref(clock));
  EXPECT_TRUE(e.ok()) << e.status().to_string();
  if (!e.ok()) return {};
  return (*e)->judge(test_ops::norm_candidate(test_ops::norm_kernel(test_ops::kRightBody))).verdict;
}

TEST(ClockCheck, OneDisturbanceDoesNotRefuseAKernel) {
  Disturbed clock;
  clock.processes = 1;
  const Verdict v = judge_disturbed(clock);
  EXPECT_EQ(v.status, VerdictStatus::kFaster) << v.to_json();
  // Disturbed, again, confirmed.
  EXPECT_EQ(clock.watched, 3) << "a process of its own for each measurement";
  ASSERT_GE(clock.inputs.size(), 2U);
  EXPECT_GT(clock.inputs[1], clock.inputs[0]) << "values of its own";
}

TEST(ClockCheck, TheSecondDisagreementRefusesWithBothMeasurements) {
  Disturbed clock;
  clock.processes = 2;
  const Verdict v = judge_disturbed(clock);
  EXPECT_EQ(v.status, VerdictStatus::kRejected) << v.to_json();
  EXPECT_EQ(v.failed_gate, Gate::kTiming);
  EXPECT_EQ(clock.watched, 2);
  const size_t first = v.reason.find("the system's clock saw 1e+03 ns against 1e+03 ns at M=16");
  EXPECT_NE(first, std::string::npos) << v.reason;
  EXPECT_NE(v.reason.find("measured again in a new process: reported", first), std::string::npos) << v.reason;
}

TEST(ClockCheck, WithoutTimeForASecondMeasurementNothingIsDecided) {
  Disturbed clock;
  clock.processes = 2;
  EvaluatorOptions options;
  options.keep_going = [&] { return clock.first < 0; };
  const Verdict v = judge_disturbed(clock, options);
  EXPECT_EQ(v.status, VerdictStatus::kAmbiguous) << v.to_json();
  EXPECT_NE(v.reason.find("time was up"), std::string::npos) << v.reason;
  EXPECT_EQ(clock.watched, 1);
}

}  // namespace
}  // namespace niche::evolve::judge
