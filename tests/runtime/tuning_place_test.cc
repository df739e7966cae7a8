// Where sessions run, by what the devices have to do.
#include "runtime/tuning_place.h"

#include <gtest/gtest.h>

namespace niche {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(TuningPlace, AnIdleDeviceOfTheClassIsChosenAndSaidWhy) {
  const DeviceLoad loads[] = {{}, {true, 0, 0.12}, {true, 0, 0}};
  const TuningChoice c = choose_tuning_device(1, "idle", loads);
  EXPECT_EQ(c.device, 2);
  EXPECT_EQ(c.why, "cuda:1 idle, where cuda:0 busy 12 % serves it");
}

TEST(TuningPlace, ThePolicySameStays) {
  const DeviceLoad loads[] = {{}, {true, 0, 0.9}, {true, 0, 0}};
  const TuningChoice c = choose_tuning_device(1, "same", loads);
  EXPECT_EQ(c.device, 1);
  EXPECT_EQ(c.why, "cuda:0, where it is served: tuning_device = same");
}

TEST(TuningPlace, StaysWhereNoOtherDeviceCanBeUsed) {
  const DeviceLoad loads[] = {{}, {true, 0, 0.9}, {false, 0, 0}};
  const TuningChoice c = choose_tuning_device(1, "idle", loads);
  EXPECT_EQ(c.device, 1);
  EXPECT_EQ(c.why, "cuda:0, where it is served: no other device of its class can be used");
}

TEST(TuningPlace, ALittleLessToDoIsNotWorthMoving) {
  const DeviceLoad loads[] = {{}, {true, 0, 0.305}, {true, 0, 0.300}};
  EXPECT_EQ(choose_tuning_device(1, "idle", loads).device, 1);
  const DeviceLoad apart[] = {{}, {true, 0, 0.35}, {true, 0, 0.300}};
  EXPECT_EQ(choose_tuning_device(1, "idle", apart).device, 2);
}

TEST(TuningPlace, SessionsSpreadBeforeLoadsAreCompared) {
  const DeviceLoad loads[] = {{}, {true, 0, 0.1}, {true, 1, 0}, {true, 0, 0.05}};
  EXPECT_EQ(choose_tuning_device(1, "idle", loads).device, 3);
  const DeviceLoad home_free[] = {{}, {true, 0, 0}, {true, 1, 0}};
  EXPECT_EQ(choose_tuning_device(1, "idle", home_free).device, 1);
}

TEST(BusyWindow, ForgetsWithinTwoWindows) {
  BusyWindow b;
  b.advance(kSecond);
  b.add(1, 5e8);
  b.advance(2 * kSecond);
  EXPECT_NEAR(b.share(1), 0.5, 1e-9);
  EXPECT_EQ(b.share(2), 0);
  b.advance(2 * kSecond + kSecond / 2);
  EXPECT_NEAR(b.share(1), 0.5 / 1.5, 1e-9);
  b.advance(3 * kSecond);
  EXPECT_EQ(b.share(1), 0) << "nothing for a whole window";
  b.add(1, 1e8);
  b.advance(9 * kSecond);
  EXPECT_EQ(b.share(1), 0) << "a thread that slept does not remember";
  EXPECT_EQ(b.share(BusyWindow::kDevicesMax), 0);
}

struct Asked final : evolve::PermitSource {
  evolve::Permit ask(int64_t) override { return {++asked, 300'000, 0}; }
  void give_back(const evolve::Permit&) override { ++given_back; }
  void revoke(const evolve::Permit&) override { ++revoked; }
  uint64_t asked = 0, given_back = 0, revoked = 0;
};

TEST(TuningGate, AFreeDeviceIsGivenAtOnceAndOneThatServesBetweenItsRequests) {
  auto made = std::make_unique<Asked>();
  Asked& shared = *made;
  TuningGate gate(std::move(made));
  EXPECT_TRUE(gate.ask(300'000));
  EXPECT_EQ(shared.asked, 1u) << "it serves until the control plane says otherwise";
  gate.give_back({1, 300'000, 0});
  EXPECT_EQ(shared.given_back, 1u);

  gate.set_serves(false);
  const evolve::Permit p = gate.ask(10 * TuningGate::kOwnBurstNs);
  EXPECT_TRUE(p);
  EXPECT_EQ(p.burst_ns, TuningGate::kOwnBurstNs);
  EXPECT_EQ(shared.asked, 1u);
  gate.set_serves(true);
  EXPECT_FALSE(gate.ask(300'000)) << "one is out";
  EXPECT_EQ(shared.asked, 1u);
  gate.give_back(p);
  EXPECT_EQ(shared.given_back, 1u);
  EXPECT_TRUE(gate.ask(300'000));
  EXPECT_EQ(shared.asked, 2u);
  gate.revoke({2, 300'000, 0});
  EXPECT_EQ(shared.revoked, 1u);

  gate.set_serves(false);
  for (int i = 0; i < 100; ++i) {
    const evolve::Permit again = gate.ask(TuningGate::kOwnBurstNs);
    ASSERT_TRUE(again) << "nobody is kept waiting, so there is no duty";
    gate.give_back(again);
  }
}

}  // namespace
}  // namespace niche
