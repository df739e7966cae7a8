// What the tests of RankGroup share: a clock without sleeping, and a member that remembers.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "dispatch/rank_group.h"

namespace niche::dispatch::testing {

// Every look at it takes a millisecond: waits end without anybody sleeping.
class TickingClock final : public Clock {
 public:
  int64_t now_ns() const override { return now_ += 1'000'000; }
  int64_t unix_time_ns() const override { return now_ns(); }

 private:
  mutable int64_t now_ = 0;
};

// Remembers what it was told.
class Member final : public GroupMember {
 public:
  Status prepare(uint64_t version, std::span<const uint8_t> payload) override {
    if (refuses) return unsupported("no such kernel here");
    EXPECT_EQ(prepared.count(version), 0u) << "at most once a version";
    prepared[version] = std::vector<uint8_t>(payload.begin(), payload.end());
    return {};
  }
  Status take(uint64_t version) override {
    if (forgets) return not_found("not prepared here");
    EXPECT_EQ(prepared.count(version), 1u) << "nothing is taken that was not prepared";
    serves = prepared[version];
    return {};
  }
  void drop(uint64_t version) override { EXPECT_EQ(prepared.erase(version), 1u); }

  bool refuses = false, forgets = false;
  std::map<uint64_t, std::vector<uint8_t>> prepared;
  std::vector<uint8_t> serves;
};

}  // namespace niche::dispatch::testing
