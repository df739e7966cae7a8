// What the timing loop takes for a call: not what the allocator of a young process makes of it.
#include "evolve/judge/cell_timing.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/evolve/judge/test_ops.h"

namespace niche::evolve::judge {
namespace {

constexpr size_t kOutputBytes = size_t{64} << 10;

// Outputs in pages that nobody has touched, for the first `fresh` calls of all; then always in the same block.
class FreshPages final : public dispatch::NativeArgs {
 public:
  FreshPages(int* calls, int fresh) : calls_(calls), fresh_(fresh) {}
  ~FreshPages() override { drop_outputs(); }
  void* get() override { return this; }
  void drop_outputs() override {
    if (own_ && at_ != nullptr) munmap(at_, kOutputBytes);
    at_ = nullptr;
  }
  void make_outputs() override {
    drop_outputs();
    own_ = (*calls_)++ < fresh_;
    static float* const kept = map();
    at_ = own_ ? map() : kept;
  }
  void outputs(void** p) override {
    if (at_ != nullptr) p[2] = at_;
  }
  float* at() const { return at_; }

 private:
  static float* map() {
    void* p = mmap(nullptr, kOutputBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<float*>(p);
  }
  int* calls_;
  int fresh_;
  float* at_ = nullptr;
  bool own_ = false;
};

// Its library form writes a whole output.
class FreshPagesOp final : public test_ops::NormOp {
 public:
  explicit FreshPagesOp(int fresh) : fresh_(fresh) {}
  std::unique_ptr<dispatch::NativeArgs> wrap(const dispatch::Problem&, void* const*) const override {
    return std::make_unique<FreshPages>(&calls, fresh_);
  }
  void run_fallback(int, const dispatch::CallFrame& frame) const override {
    auto* native = static_cast<FreshPages*>(frame.native);
    native->make_outputs();
    for (size_t i = 0; i < kOutputBytes / sizeof(float); ++i) native->at()[i] = 1;
  }
  mutable int calls = 0;

 private:
  int fresh_;
};

// The library form against itself, three pairs, in this process. Inputs begin within a page, as the judge places them.
TimeReply measure(const std::shared_ptr<FreshPagesOp>& op, int sets = 1) {
  auto arena = std::move(*SharedArena::make(int64_t{64} << 20));
  CellSpec spec;
  spec.op = op;
  spec.definition = *dispatch::Definition::make(op->schema(), dispatch::kF32, {{"N", 1024}});
  spec.arena = arena.get();
  auto command = std::make_unique<TimeCommand>();
  command->kernel = kSelf;
  command->forms = 1;
  command->axes = {16, 1024};
  command->sets = sets;
  command->pairs = 3;
  command->calls = 1;
  command->verify_pair = -1;
  command->seed = 1;
  constexpr int64_t kShift = 1024;
  for (int set = 0; set < sets; ++set)
    for (const size_t arg : {0, 1}) {
      Placement p = *arena->place((arg == 0 ? int64_t{kOutputBytes} : 4096) + kShift, 64, Side::kStart);
      p.at += kShift, p.bytes -= kShift;
      command->set[set][arg] = p;
    }
  CrashPage crash{};
  TimingRig rig(spec, {}, {}, &crash, *command);
  TimeReply reply{};
  EXPECT_TRUE(rig.measure(reply).ok());
  return reply;
}

TEST(TimingRig, PairsBeginWhenOutputsNoLongerLieInFreshPages) {
  constexpr int kFresh = 30;  // calls; a round has two
  const auto op = std::make_shared<FreshPagesOp>(kFresh);
  const TimeReply reply = measure(op);
  ASSERT_EQ(reply.pairs, 3);
  // Three rounds without a fault, then the pairs: none of their calls is one of the first thirty.
  EXPECT_GE(op->calls, kFresh + 2 * 3 + 2 * reply.pairs);
}

// A set's last page, too: else every set's first visit is a fault, no round is quiet until all were visited, and pairs of a
// batch that begins before are dropped.
TEST(TimingRig, SetsAreMappedBeforeTheFirstCall) {
  const auto op = std::make_shared<FreshPagesOp>(0);
  const TimeReply reply = measure(op, kSetsMax);
  ASSERT_EQ(reply.pairs, 3);
  // The first round's code, then three quiet ones; a few more, for whatever else a young process maps.
  EXPECT_LE(op->calls, 2 * 12 + 2 * reply.pairs);
}

TEST(TimingRig, PairsThatMeetPageFaultsAreDroppedWhereTheyNeverEnd) {
  const auto op = std::make_shared<FreshPagesOp>(1'000'000);
  const TimeReply reply = measure(op);
  ASSERT_EQ(reply.pairs, 3);
  for (int i = 0; i < reply.pairs; ++i) EXPECT_NE(reply.pair[i].dropped, 0U) << i;
  EXPECT_LE(op->calls, 2 * 64 + 2 * reply.pairs);
}

}  // namespace
}  // namespace niche::evolve::judge
