// The reclamation protocol of epoch.h, the very code, under every execution of small cases in a weak memory
// model; and with each order and fence weakened in turn: every weakening is caught.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "dispatch/epoch.h"
#include "tests/dispatch/weak_memory.h"

namespace niche::dispatch {
namespace {

using testing::ModelAtomic;
using testing::ModelMutex;
using testing::WeakMemory;

// EpochOrders with one of them weakened at a time.
struct ModelOrders {
  static inline std::memory_order kEnterEpoch, kEnterStamp, kEnterExchange, kLoadPointer, kLeave, kPublish,
      kAdvance, kScan;
  static inline bool kLightFence, kHeavyFence;
  static void reset() {
    kEnterEpoch = EpochOrders::kEnterEpoch;
    kEnterStamp = EpochOrders::kEnterStamp;
    kEnterExchange = EpochOrders::kEnterExchange;
    kLoadPointer = EpochOrders::kLoadPointer;
    kLeave = EpochOrders::kLeave;
    kPublish = EpochOrders::kPublish;
    kAdvance = EpochOrders::kAdvance;
    kScan = EpochOrders::kScan;
    kLightFence = EpochOrders::kLightFence;
    kHeavyFence = EpochOrders::kHeavyFence;
  }
};

struct ModelPlatform {
  template <typename T>
  using Atomic = ModelAtomic<T>;
  using Mutex = ModelMutex;
  using Orders = ModelOrders;
  static bool asymmetric_available() { return true; }
  static void light_fence() { WeakMemory::current()->light_fence(); }
  static void heavy_fence() { WeakMemory::current()->heavy_fence(); }
  static uint64_t fresh_zero() { return 0; }
};

struct Box {
  WeakMemory::Data data;
};
void read(const Box* b) { WeakMemory::current()->read(const_cast<WeakMemory::Data*>(&b->data), "a table"); }
void write(const Box* b) { WeakMemory::current()->write(const_cast<WeakMemory::Data*>(&b->data), "a table"); }

struct Case {
  int readers = 1;
  int sections = 1;  // a reader
  int publications = 1;
  bool nested = false;       // an inner guard in each section
  bool late_attach = false;  // readers attach their slot while the writer runs
};

struct World {
  using Domain = BasicEpochDomain<ModelPlatform, Box>;
  explicit World(const Case& c, bool asymmetric)
      : boxes(static_cast<size_t>(c.publications) + 1), domain(&boxes[0], asymmetric) {
    for (int i = 0; i < c.readers; ++i) {
      slots.push_back(std::make_unique<Domain::Slot>());
      if (!c.late_attach) domain.attach(slots.back().get());
    }
  }

  void reader(int i, const Case& c) {
    Domain::Slot& slot = *slots[static_cast<size_t>(i)];
    if (c.late_attach) domain.attach(&slot);
    for (int s = 0; s < c.sections; ++s) {
      const uint64_t outer = domain.enter(slot);
      const Box* b = domain.current();
      read(b);
      if (c.nested) {
        const uint64_t inner = domain.enter(slot);
        read(domain.current());
        domain.leave(slot, inner);
        read(b);
      }
      domain.leave(slot, outer);
    }
  }

  void writer(const Case& c) {
    std::vector<std::pair<const Box*, uint64_t>> retired;
    for (int p = 1; p <= c.publications; ++p) {
      const auto i = static_cast<size_t>(p);
      write(&boxes[i]);  // constructed
      retired.push_back({&boxes[i - 1], domain.publish(&boxes[i])});
      const uint64_t oldest = domain.oldest_active();
      while (!retired.empty() && retired.front().second < oldest) {
        write(retired.front().first);  // freed
        retired.erase(retired.begin());
      }
    }
  }

  std::vector<Box> boxes;
  Domain domain;
  std::vector<std::unique_ptr<Domain::Slot>> slots;
};

WeakMemory::Result explore(const Case& c, bool asymmetric) {
  std::shared_ptr<World> world;
  return WeakMemory::explore(
      [&] {
        world = std::make_shared<World>(c, asymmetric);
        std::vector<std::function<void()>> threads;
        threads.push_back([w = world.get(), c] { w->writer(c); });
        for (int i = 0; i < c.readers; ++i) threads.push_back([w = world.get(), c, i] { w->reader(i, c); });
        return threads;
      },
      20'000'000);
}

void expect_safe(const Case& c, bool asymmetric) {
  ModelOrders::reset();
  const WeakMemory::Result r = explore(c, asymmetric);
  EXPECT_EQ(r.failure, "");
  EXPECT_TRUE(r.exhausted) << r.executions;
  EXPECT_GT(r.executions, 10);
  ::testing::Test::RecordProperty("executions", std::to_string(r.executions));
}

class EpochModel : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Fences, EpochModel, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "Asymmetric" : "Exchange"; });

TEST_P(EpochModel, OneReaderTwoSectionsTwoPublications) {
  expect_safe({.readers = 1, .sections = 2, .publications = 2}, GetParam());
}
TEST_P(EpochModel, TwoReadersOnePublication) {
  expect_safe({.readers = 2, .sections = 1, .publications = 1}, GetParam());
}
TEST_P(EpochModel, NestedGuards) {
  expect_safe({.readers = 1, .sections = 1, .publications = 2, .nested = true}, GetParam());
}
TEST_P(EpochModel, AThreadThatAttachesWhileTheWriterScans) {
  expect_safe({.readers = 1, .sections = 1, .publications = 2, .late_attach = true}, GetParam());
}

// One small case shows every weakening. docs/dispatch.md says which of them no test on x86 can show.
void expect_caught(bool asymmetric, const char* what, void (*weaken)()) {
  ModelOrders::reset();
  weaken();
  const WeakMemory::Result r = explore({.readers = 1, .sections = 2, .publications = 2}, asymmetric);
  EXPECT_NE(r.failure, "") << what << ": " << r.executions << " executions, exhausted " << r.exhausted;
}
#define NICHE_EXPECT_CAUGHT(asymmetric, change) \
  expect_caught(asymmetric, #change, [] { ModelOrders::change; })

TEST(EpochMutation, AsymmetricOrders) {
  NICHE_EXPECT_CAUGHT(true, kEnterEpoch = std::memory_order_relaxed);
  NICHE_EXPECT_CAUGHT(true, kEnterStamp = std::memory_order_relaxed);
  NICHE_EXPECT_CAUGHT(true, kLoadPointer = std::memory_order_relaxed);
  NICHE_EXPECT_CAUGHT(true, kLeave = std::memory_order_relaxed);
  NICHE_EXPECT_CAUGHT(true, kPublish = std::memory_order_relaxed);
  NICHE_EXPECT_CAUGHT(true, kAdvance = std::memory_order_relaxed);
  NICHE_EXPECT_CAUGHT(true, kScan = std::memory_order_relaxed);
}
TEST(EpochMutation, AsymmetricFences) {
  NICHE_EXPECT_CAUGHT(true, kLightFence = false);
  NICHE_EXPECT_CAUGHT(true, kHeavyFence = false);
}
TEST(EpochMutation, ExchangeOrders) {
  NICHE_EXPECT_CAUGHT(false, kEnterExchange = std::memory_order_acq_rel);
  NICHE_EXPECT_CAUGHT(false, kLoadPointer = std::memory_order_acquire);
  NICHE_EXPECT_CAUGHT(false, kPublish = std::memory_order_release);
  NICHE_EXPECT_CAUGHT(false, kScan = std::memory_order_acquire);
  NICHE_EXPECT_CAUGHT(false, kEnterEpoch = std::memory_order_relaxed);
  NICHE_EXPECT_CAUGHT(false, kLeave = std::memory_order_relaxed);
  NICHE_EXPECT_CAUGHT(false, kAdvance = std::memory_order_relaxed);
}

// The model itself: litmus tests with known answers.
struct Litmus {
  ModelAtomic<int> x{0}, y{0};
  int a = -1, b = -1;
};
bool reachable(std::function<void(Litmus*)> first, std::function<void(Litmus*)> second,
               std::function<bool(const Litmus&)> outcome) {
  std::shared_ptr<Litmus> l;
  int done = 0;
  const auto end = [&](const std::function<void(Litmus*)>& body) {
    return [&, body] {
      body(l.get());
      if (++done == 2 && outcome(*l)) WeakMemory::current()->fail("reached");
    };
  };
  return !WeakMemory::explore(
              [&] {
                l = std::make_shared<Litmus>();
                done = 0;
                return std::vector<std::function<void()>>{end(first), end(second)};
              },
              1'000'000)
              .failure.empty();
}

TEST(WeakMemory, StoreBufferingIsAllowedUnlessSequentiallyConsistentOrFenced) {
  const auto both_zero = [](const Litmus& l) { return l.a == 0 && l.b == 0; };
  for (const auto& [order, allowed] : {std::pair{std::memory_order_relaxed, true},
                                       {std::memory_order_release, true},
                                       {std::memory_order_seq_cst, false}}) {
    const auto load = order == std::memory_order_release ? std::memory_order_acquire : order;
    EXPECT_EQ(reachable([=](Litmus* l) { l->x.store(1, order), l->a = l->y.load(load); },
                        [=](Litmus* l) { l->y.store(1, order), l->b = l->x.load(load); }, both_zero),
              allowed);
  }
  const auto with_fences = [&](bool light, bool heavy) {
    return reachable(
        [=](Litmus* l) {
          l->x.store(1, std::memory_order_relaxed);
          if (light) WeakMemory::current()->light_fence();
          l->a = l->y.load(std::memory_order_relaxed);
        },
        [=](Litmus* l) {
          l->y.store(1, std::memory_order_relaxed);
          heavy ? WeakMemory::current()->heavy_fence() : WeakMemory::current()->light_fence();
          l->b = l->x.load(std::memory_order_relaxed);
        },
        both_zero);
  };
  EXPECT_FALSE(with_fences(true, true));
  EXPECT_TRUE(with_fences(true, false)) << "two light fences order nothing";
  EXPECT_TRUE(with_fences(false, true));
}

TEST(WeakMemory, MessagePassingNeedsReleaseAndAcquire) {
  const auto stale = [](const Litmus& l) { return l.a == 1 && l.b == 0; };
  const auto reach = [&](std::memory_order store, std::memory_order load) {
    return reachable([=](Litmus* l) { l->x.store(1, std::memory_order_relaxed), l->y.store(1, store); },
                     [=](Litmus* l) { l->a = l->y.load(load), l->b = l->x.load(std::memory_order_relaxed); },
                     stale);
  };
  EXPECT_FALSE(reach(std::memory_order_release, std::memory_order_acquire));
  EXPECT_TRUE(reach(std::memory_order_relaxed, std::memory_order_acquire));
  EXPECT_TRUE(reach(std::memory_order_release, std::memory_order_relaxed));
}

TEST(WeakMemory, CoherenceHolds) {
  EXPECT_FALSE(reachable(
      [](Litmus* l) { l->x.store(1, std::memory_order_relaxed), l->x.store(2, std::memory_order_relaxed); },
      [](Litmus* l) {
        l->a = l->x.load(std::memory_order_relaxed);
        l->b = l->x.load(std::memory_order_relaxed);
      },
      [](const Litmus& l) { return l.a > l.b; }));
}

}  // namespace
}  // namespace niche::dispatch
