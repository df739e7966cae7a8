// What threads hand to each other beside tables (event records, grown workspaces), the very code, under every
// execution of small cases in a weak memory model; and with each order weakened in turn: every weakening is
// caught.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/counters.h"
#include "dispatch/hit_log.h"
#include "dispatch/thread_state.h"
#include "tests/dispatch/weak_memory.h"

namespace niche::dispatch {
namespace {

using testing::ModelAtomic;
using testing::WeakMemory;

template <typename Orders_>
struct Model {
  template <typename T>
  using Atomic = ModelAtomic<T>;
  using Orders = Orders_;
};

// A record whose every access is watched for races.
struct Record {
  WeakMemory::Data data;
  int value = 0;
  void write(int v) {
    WeakMemory::current()->write(&data, "a record");
    value = v;
  }
  Record& operator=(const Record& o) {
    WeakMemory::current()->read(const_cast<WeakMemory::Data*>(&o.data), "a record");
    value = o.value;
    return *this;
  }
};

struct ModelRingOrders {
  static inline std::memory_order kPushTail, kCommit, kPopHead, kPopTail;
  static void reset() {
    kPushTail = RingOrders::kPushTail;
    kCommit = RingOrders::kCommit;
    kPopHead = RingOrders::kPopHead;
    kPopTail = RingOrders::kPopTail;
  }
};

// One thread pushes four records into a ring of two, another takes what it finds.
WeakMemory::Result explore_ring() {
  struct World {
    SpscRing<Record, 2, Model<ModelRingOrders>> ring;
    int pushed = 0;
    std::vector<int> popped;
  };
  std::shared_ptr<World> world;
  return WeakMemory::explore(
      [&] {
        world = std::make_shared<World>();
        return std::vector<std::function<void()>>{
            [w = world.get()] {
              for (int i = 1; i <= 4; ++i) {
                Record* r = w->ring.begin_push();
                if (r == nullptr) continue;
                r->write(++w->pushed);
                w->ring.commit();
              }
            },
            [w = world.get()] {
              Record r;
              for (int i = 0; i < 4; ++i) {
                if (!w->ring.pop(r)) continue;
                w->popped.push_back(r.value);
                if (r.value != static_cast<int>(w->popped.size()))
                  WeakMemory::current()->fail("record " + std::to_string(w->popped.size()) + " was " +
                                              std::to_string(r.value));
              }
            }};
      },
      5'000'000);
}

TEST(RingModel, RecordsArriveWholeAndInOrder) {
  ModelRingOrders::reset();
  const auto r = explore_ring();
  EXPECT_EQ(r.failure, "");
  EXPECT_TRUE(r.exhausted);
  EXPECT_GT(r.executions, 1000);
}

TEST(RingMutation, EachOrderIsNeeded) {
  const std::pair<const char*, std::memory_order*> orders[] = {{"kPushTail", &ModelRingOrders::kPushTail},
                                                               {"kCommit", &ModelRingOrders::kCommit},
                                                               {"kPopHead", &ModelRingOrders::kPopHead},
                                                               {"kPopTail", &ModelRingOrders::kPopTail}};
  for (const auto& [name, order] : orders) {
    ModelRingOrders::reset();
    *order = std::memory_order_relaxed;
    EXPECT_NE(explore_ring().failure, "") << name;
  }
}

struct ModelLentOrders {
  static inline std::memory_order kSetBlock, kSetUnits, kLendUnits, kLendBlock;
  static void reset() {
    kSetBlock = LentOrders::kSetBlock;
    kSetUnits = LentOrders::kSetUnits;
    kLendUnits = LentOrders::kLendUnits;
    kLendBlock = LentOrders::kLendBlock;
  }
};

// The registry grows a workspace twice while its thread borrows it.
WeakMemory::Result explore_workspace() {
  struct Block {
    WeakMemory::Data data;
    uint32_t units = 0;
  };
  struct World {
    BasicLentBlock<Model<ModelLentOrders>> lent;
    Block blocks[3];
  };
  std::shared_ptr<World> world;
  return WeakMemory::explore(
      [&] {
        world = std::make_shared<World>();
        return std::vector<std::function<void()>>{
            [w = world.get()] {
              for (uint32_t i = 1; i <= 2; ++i) {
                Block& b = w->blocks[i];
                WeakMemory::current()->write(&b.data, "a block");  // allocated
                b.units = i;
                w->lent.set(reinterpret_cast<char*>(&b), i);
              }
            },
            [w = world.get()] {
              for (int i = 0; i < 2; ++i) {
                const auto loan = w->lent.lend();
                if (loan.block == nullptr) {
                  if (loan.units != 0) WeakMemory::current()->fail("units without a block");
                  continue;
                }
                auto* b = reinterpret_cast<Block*>(loan.block);
                WeakMemory::current()->read(&b->data, "a block");
                if (b->units < loan.units) WeakMemory::current()->fail("more units than the block has");
              }
            }};
      },
      1'000'000);
}

TEST(WorkspaceModel, NeverMoreIsLentThanThereIs) {
  ModelLentOrders::reset();
  const auto r = explore_workspace();
  EXPECT_EQ(r.failure, "");
  EXPECT_TRUE(r.exhausted);
}

TEST(WorkspaceMutation, EachOrderIsNeeded) {
  const std::pair<const char*, std::memory_order*> orders[] = {{"kSetBlock", &ModelLentOrders::kSetBlock},
                                                               {"kSetUnits", &ModelLentOrders::kSetUnits},
                                                               {"kLendUnits", &ModelLentOrders::kLendUnits},
                                                               {"kLendBlock", &ModelLentOrders::kLendBlock}};
  for (const auto& [name, order] : orders) {
    ModelLentOrders::reset();
    *order = std::memory_order_relaxed;
    EXPECT_NE(explore_workspace().failure, "") << name;
  }
}

struct ModelHitLogOrders {
  static inline std::memory_order kPlace, kLogged, kCounted, kFlushed, kReadFlushed, kReadCounter,
      kReadLogged, kReadPlace;
  static void reset() {
    kPlace = HitLogOrders::kPlace;
    kLogged = HitLogOrders::kLogged;
    kCounted = HitLogOrders::kCounted;
    kFlushed = HitLogOrders::kFlushed;
    kReadFlushed = HitLogOrders::kReadFlushed;
    kReadCounter = HitLogOrders::kReadCounter;
    kReadLogged = HitLogOrders::kReadLogged;
    kReadPlace = HitLogOrders::kReadPlace;
  }
};

// A thread logs two hits of route 1, which fill the ring, and one of route 0 over them; another counts route 1 twice.
WeakMemory::Result explore_hit_log() {
  struct World {
    BasicHitLog<Model<ModelHitLogOrders>, 2> log;
    ModelAtomic<uint64_t> counters[2];
    uint64_t truth = 0;  // hits of route 1 so far
  };
  std::shared_ptr<World> world;
  return WeakMemory::explore(
      [&] {
        world = std::make_shared<World>();
        return std::vector<std::function<void()>>{
            [w = world.get()] {
              for (const uint32_t route : {1u, 1u, 0u}) {
                w->truth += route;
                if (w->log.add(route))
                  (void)w->log.settle(
                      0, [w](uint32_t r) -> ModelAtomic<uint64_t>& { return w->counters[r]; },
                      [] { return 0; });
              }
            },
            [w = world.get()] {
              uint64_t before = 0;
              for (int i = 0; i < 2; ++i) {
                uint64_t sum = 0;
                if (!w->log.try_count(1, w->counters[1], &sum)) continue;
                if (sum > w->truth)
                  WeakMemory::current()->fail("counted " + std::to_string(sum) + " of " +
                                              std::to_string(w->truth));
                if (sum < before)
                  WeakMemory::current()->fail("counted " + std::to_string(sum) + " after " +
                                              std::to_string(before));
                before = sum;
              }
            }};
      },
      20'000'000);
}

TEST(HitLogModel, NoHitIsCountedTwiceOrForgotten) {
  ModelHitLogOrders::reset();
  const auto r = explore_hit_log();
  EXPECT_EQ(r.failure, "");
  EXPECT_TRUE(r.exhausted);
  EXPECT_GT(r.executions, 1000);
}

TEST(HitLogMutation, EachOrderIsNeeded) {
  using O = ModelHitLogOrders;
  const std::pair<const char*, std::memory_order*> orders[] = {{"kPlace", &O::kPlace},
                                                               {"kLogged", &O::kLogged},
                                                               {"kCounted", &O::kCounted},
                                                               {"kFlushed", &O::kFlushed},
                                                               {"kReadFlushed", &O::kReadFlushed},
                                                               {"kReadCounter", &O::kReadCounter},
                                                               {"kReadLogged", &O::kReadLogged},
                                                               {"kReadPlace", &O::kReadPlace}};
  for (const auto& [name, order] : orders) {
    O::reset();
    *order = std::memory_order_relaxed;
    EXPECT_NE(explore_hit_log().failure, "") << name;
  }
}

}  // namespace
}  // namespace niche::dispatch
