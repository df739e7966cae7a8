// The ranks' agreement under every interleaving of two ranks' steps. Apart from rank_group_test.cc: 3 million
// executions that ThreadSanitizer would remember each thread of (24 GB).
#include <gtest/gtest.h>

#include <memory>

#include "dispatch/rank_group.h"
#include "tests/dispatch/rank_group_fixture.h"
#include "tests/dispatch/weak_memory.h"

namespace niche::dispatch {
namespace {

using testing::Member;
using testing::TickingClock;

const uint8_t kA[] = {1, 2, 3};

// The board's words as locations of the weak memory model.
class ModelBoard final : public GroupBoard {
 public:
  static constexpr auto kOrder = std::memory_order_seq_cst;
  int ranks() const override { return 2; }
  uint64_t load(Word w) const override { return words[static_cast<int>(w)].load(kOrder); }
  void store(Word w, uint64_t v) override { words[static_cast<int>(w)].store(v, kOrder); }
  bool compare_exchange(Word w, uint64_t expected, uint64_t v) override {
    return words[static_cast<int>(w)].compare_exchange(expected, v, kOrder);
  }
  uint64_t load(RankWord w, int r) const override { return rank[r][static_cast<int>(w)].load(kOrder); }
  void store(RankWord w, int r, uint64_t v) override { rank[r][static_cast<int>(w)].store(v, kOrder); }
  void write_payload(uint64_t, std::span<const uint8_t> b) override { payload.assign(b.begin(), b.end()); }
  std::vector<uint8_t> read_payload(uint64_t) const override { return payload; }

 private:
  testing::ModelAtomic<uint64_t> words[2];
  testing::ModelAtomic<uint64_t> rank[2][4];
  std::vector<uint8_t> payload;
};

TEST(RankGroupModel, EveryInterleavingOfTwoRanksAgrees) {
  struct World {
    std::shared_ptr<ModelBoard> board = std::make_shared<ModelBoard>();
    TickingClock clock;
    Member members[2];
    std::unique_ptr<RankGroup> groups[2];
    uint64_t seen[2][4] = {};
    int done = 0;
  };
  std::shared_ptr<World> world;
  long switched = 0, dropped = 0;
  const auto result = testing::WeakMemory::explore(
      [&] {
        world = std::make_shared<World>();
        for (int r = 0; r < 2; ++r)
          world->groups[r] =
              *RankGroup::make(world->board, &world->members[r],
                               {.rank = r, .clock = &world->clock, .decide_ns_max = 1'000'000});
        (void)world->groups[0]->propose(kA);
        for (int i = 0; i < 2; ++i)
          for (auto& g : world->groups) g->poll();
        std::vector<std::function<void()>> ranks;
        for (int r = 0; r < 2; ++r) {
          ranks.push_back([&, w = world.get(), r] {
            for (uint64_t n = 1; n <= 3; ++n) w->seen[r][n] = w->groups[r]->step(n);
            if (++w->done < 2) return;
            for (int n = 1; n <= 3; ++n)
              if (w->seen[0][n] != w->seen[1][n])
                testing::WeakMemory::current()->fail("disagreed at step " + std::to_string(n));
            ++(w->seen[0][3] != 0 ? switched : dropped);
          });
        }
        return ranks;
      },
      3'000'000);
  EXPECT_EQ(result.failure, "");
  EXPECT_TRUE(result.exhausted) << result.executions << " executions";
  EXPECT_GT(switched, 0);
  EXPECT_GT(dropped, 0) << "ranks that run apart without collectives";
  RecordProperty("executions", static_cast<int>(result.executions));
}

}  // namespace
}  // namespace niche::dispatch
