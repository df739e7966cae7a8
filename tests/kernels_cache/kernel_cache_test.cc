// What a cache keeps, finds, bounds and forgets; who may open one, and as what: cache_access_test.cc.
#include "kernels_cache/kernel_cache.h"

#include "dispatch/base/hash.h"
#include "kernels_cache/lease.h"
#include "test_support.h"

namespace niche::kernels_cache {
namespace {

using KernelCacheTest = CacheTest;

TEST_F(KernelCacheTest, WhatWasCommittedIsThereAfterARestart) {
  const KernelRecord in = test_record(1);
  std::string file;
  {
    auto cache = open();
    auto committed = cache->commit(in);
    ASSERT_TRUE(committed.ok()) << committed.status().to_string();
    file = *committed;
  }
  auto cache = open();
  const auto out = cache->load_file(file);
  ASSERT_TRUE(out);
  expect_equal(in, *out);
  EXPECT_EQ(cache->of_definition(dispatch::hash_bytes(in.definition)), std::vector<KernelId>{kernel_id(in)});
}

TEST_F(KernelCacheTest, ADirectoryThatIsMovedIsNoticedAndTheNextOneTakesOver) {
  auto old = open();
  const KernelRecord good = test_record(1), bad = test_record(2);
  ASSERT_TRUE(old->commit(good).ok());
  ASSERT_TRUE(old->commit(bad).ok());
  old->set_proven(kernel_id(good));
  old->count_served(kernel_id(good), 70);
  ASSERT_TRUE(old->standings().quarantine(kernel_ref(bad), "wrong", now_).ok());
  EXPECT_EQ(old->place(), Place::kHere);
  std::filesystem::rename(options().root, scratch_.path() + "/elsewhere");
  EXPECT_EQ(old->place(), Place::kGone);

  auto next = open();
  EXPECT_EQ(old->place(), Place::kReplaced);
  EXPECT_EQ(next->place(), Place::kHere);
  ASSERT_TRUE(next->standings().adopt(old->standings()).ok());
  EXPECT_TRUE(next->copy(kernel_id(good), *old).ok());
  EXPECT_TRUE(next->copy(kernel_id(good), *old).ok()) << "it is there";
  EXPECT_EQ(next->copy(kernel_id(bad), *old).code(), dispatch::Code::kUnsupported);
  EXPECT_EQ(next->copy(kernel_id(test_record(3)), *old).code(), dispatch::Code::kNotFound);
  ASSERT_TRUE(next->flush().ok());
  next = open();
  ASSERT_EQ(next->entries().size(), 1U);
  EXPECT_EQ(next->entries()[0].served_calls, 70);
  EXPECT_TRUE(next->proven(kernel_id(good)));
  EXPECT_EQ(next->standings().state(kernel_id(bad)), StandingState::kQuarantined);
  EXPECT_EQ(next->standings().find(kernel_id(bad))->reason, "wrong");

  std::filesystem::remove_all(options().root);
  EXPECT_EQ(next->place(), Place::kGone);
  std::filesystem::rename(scratch_.path() + "/elsewhere", options().root);
  EXPECT_EQ(next->place(), Place::kReplaced);
  EXPECT_EQ(old->place(), Place::kHere) << "back where it was";
}

TEST_F(KernelCacheTest, ABadEntryIsALoggedCountedMissAndTheRestServes) {
  const struct {
    MissReason want;
    std::function<void(const std::string& path)> spoil;
  } cases[] = {
      {MissReason::kTruncated, [](const std::string& p) { std::filesystem::resize_file(p, 100); }},
      {MissReason::kTruncated, [](const std::string& p) { std::filesystem::resize_file(p, 0); }},
      {MissReason::kCorrupt,
       [](const std::string& p) {
         auto b = bytes_of(p);
         b[200] ^= 1;
         write_bytes(p, b);
       }},
      {MissReason::kCorrupt,
       [](const std::string& p) {
         auto b = bytes_of(p);
         b.back() ^= 1;
         write_bytes(p, b);
       }},
      {MissReason::kForeign, [](const std::string& p) { write_bytes(p, std::string(5000, 'x')); }},
      {MissReason::kStale,
       [](const std::string& p) {
         auto b = bytes_of(p);
         b[12] = 9;
         write_bytes(p, b);
       }},
      {MissReason::kForeign, [](const std::string& p) { ::chmod(p.c_str(), 0666); }},
      {MissReason::kForeign,
       [](const std::string& p) {
         std::filesystem::rename(p, p + ".real");
         std::filesystem::create_symlink(p + ".real", p);
       }},
      {MissReason::kForeign,
       [](const std::string& p) {
         std::filesystem::remove(p);
         ASSERT_EQ(::mkfifo(p.c_str(), 0600), 0);
       }},
      {MissReason::kAbsent, [](const std::string& p) { std::filesystem::remove(p); }},
  };
  int i = 0;
  for (const auto& c : cases) {
    auto o = options();
    o.root = scratch_.path() + "/case" + std::to_string(i);
    auto cache = open(o);
    ASSERT_TRUE(cache->commit(test_record(1)).ok());
    ASSERT_TRUE(cache->commit(test_record(2)).ok());
    const KernelId bad = kernel_id(test_record(1)), good = kernel_id(test_record(2));
    c.spoil(entry_path(*cache, bad));
    log_.clear();
    Miss miss;
    EXPECT_FALSE(cache->load(bad, Part::kRecordAndArtefact, &miss)) << i;
    const MissReason want = c.want;
    EXPECT_EQ(miss.reason, want) << i << ": " << miss.text;
    EXPECT_EQ(misses(*cache, want), 1u) << i;
    ASSERT_EQ(log_.size(), 1u) << i;
    EXPECT_NE(log_[0].find(bad.file_name()), std::string::npos) << log_[0];
    EXPECT_TRUE(cache->load(good)) << i;

    cache = open(o);  // and again when the start finds it, without the index
    EXPECT_FALSE(cache->load(bad)) << i;
    EXPECT_TRUE(cache->load(good)) << i;
    ++i;
  }
}

TEST_F(KernelCacheTest, TheRightModeOfAFileIsThatOfAFile) {
  auto cache = open();
  ASSERT_TRUE(cache->commit(test_record(1)).ok());
  const KernelId id = kernel_id(test_record(1));
  ASSERT_EQ(::chmod(entry_path(*cache, id).c_str(), 0666), 0);
  Miss miss;
  EXPECT_FALSE(cache->load(id, Part::kRecordAndArtefact, &miss));
  EXPECT_NE(miss.text.find("mode 0666 lets group or others write; make it 0600"), std::string::npos)
      << miss.text;
}

TEST_F(KernelCacheTest, AnEntryUnderAnotherKernelsNameIsForeign) {
  auto cache = open();
  ASSERT_TRUE(cache->commit(test_record(1)).ok());
  ASSERT_TRUE(cache->commit(test_record(2)).ok());
  const KernelId a = kernel_id(test_record(1)), b = kernel_id(test_record(2));
  write_bytes(entry_path(*cache, a), bytes_of(entry_path(*cache, b)));
  EXPECT_FALSE(cache->load(a));
  EXPECT_EQ(misses(*cache, MissReason::kForeign), 1u);
}

TEST_F(KernelCacheTest, HotSetIsOrderedByCallsServedAndSurvivesARestart) {
  {
    auto cache = open();
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(cache->commit(test_record(i)).ok());
    cache->count_served(kernel_id(test_record(7)), 9'000);
    cache->count_served(kernel_id(test_record(3)), 950);
    cache->count_served(kernel_id(test_record(5)), 49);
    cache->count_served(kernel_id(test_record(6)), 1);
    ASSERT_TRUE(cache->flush().ok());
  }
  auto cache = open();
  EXPECT_EQ(cache->counters().index_rebuilt, 0u);
  EXPECT_EQ(cache->hot_set(0.99),
            (std::vector<KernelId>{kernel_id(test_record(7)), kernel_id(test_record(3))}));
  EXPECT_EQ(cache->all().size(), 20u);
  EXPECT_EQ(cache->load(kernel_id(test_record(7)))->served_calls, 9'000);
}

TEST_F(KernelCacheTest, ATornIndexIsRebuiltFromTheEntries) {
  std::string index;
  {
    auto cache = open();
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(cache->commit(test_record(i)).ok());
    ASSERT_TRUE(cache->flush().ok());
    index = cache->home().path() + "/index.kx";
  }
  const std::string whole = bytes_of(index);
  for (size_t cut : {size_t{0}, size_t{50}, whole.size() / 2, whole.size() - 1}) {
    write_bytes(index, whole.substr(0, cut));
    auto cache = open();
    EXPECT_EQ(cache->counters().index_rebuilt, 1u) << cut;
    EXPECT_EQ(cache->all().size(), 5u) << cut;
  }
}

TEST_F(KernelCacheTest, AnIndexThatLiesIsSetRightAtOpen) {
  {
    auto cache = open();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(cache->commit(test_record(i)).ok());
    cache->count_served(kernel_id(test_record(0)), 10);
    ASSERT_TRUE(cache->flush().ok());
    std::filesystem::remove(entry_path(*cache, kernel_id(test_record(0))));
    ASSERT_TRUE(cache->commit(test_record(3)).ok());  // not in the index either
  }
  auto cache = open();
  EXPECT_TRUE(cache->hot_set().empty());
  EXPECT_EQ(cache->all().size(), 3u);
  EXPECT_TRUE(cache->load(kernel_id(test_record(3))));
  EXPECT_FALSE(cache->load(kernel_id(test_record(0))));
}

TEST_F(KernelCacheTest, AnEntryThatGoesAfterOpenIsOnlyAMiss) {
  auto cache = open();
  ASSERT_TRUE(cache->commit(test_record(0)).ok());
  std::filesystem::remove(entry_path(*cache, kernel_id(test_record(0))));
  EXPECT_FALSE(cache->load(kernel_id(test_record(0))));
  EXPECT_EQ(misses(*cache, MissReason::kAbsent), 1u);
  cache->refresh();
  EXPECT_TRUE(cache->all().empty());
}

TEST_F(KernelCacheTest, SubscribersSeeWhatAnotherProcessCommittedOrRemoved) {
  auto tuner = open(), subscriber = open();
  ASSERT_TRUE(tuner->commit(test_record(1)).ok());
  EXPECT_EQ(subscriber->refresh().added, std::vector<KernelId>{kernel_id(test_record(1))});
  EXPECT_TRUE(subscriber->refresh().added.empty());
  ASSERT_TRUE(subscriber->commit(test_record(2)).ok());
  EXPECT_TRUE(subscriber->refresh().added.empty());  // its own
  ASSERT_TRUE(tuner->remove(kernel_id(test_record(1))).ok());
  EXPECT_EQ(subscriber->refresh().removed, std::vector<KernelId>{kernel_id(test_record(1))});
}

TEST_F(KernelCacheTest, WhatACommitNoticedOfOthersIsStillReported) {
  auto tuner = open(), subscriber = open();
  ASSERT_TRUE(tuner->commit(test_record(1)).ok());
  ASSERT_TRUE(subscriber->commit(test_record(2)).ok());  // lists the directory to keep the bound
  EXPECT_EQ(subscriber->refresh().added, std::vector<KernelId>{kernel_id(test_record(1))});
}

TEST_F(KernelCacheTest, CountersOfSeveralProcessesMerge) {
  auto a = open();
  ASSERT_TRUE(a->commit(test_record(1)).ok());
  auto b = open();
  b->refresh();
  const KernelId id = kernel_id(test_record(1));
  a->count_served(id, 100);
  ASSERT_TRUE(a->flush().ok());
  b->count_served(id, 30);
  ASSERT_TRUE(b->flush().ok());
  a->count_served(id, 1);
  ASSERT_TRUE(a->flush().ok());
  EXPECT_EQ(open()->load(id)->served_calls, 131);
}

TEST_F(KernelCacheTest, ProvenLastsUntilTheCodeChanges) {
  const KernelId id = kernel_id(test_record(1));
  {
    auto cache = open();
    ASSERT_TRUE(cache->commit(test_record(1)).ok());
    cache->set_proven(id);
    ASSERT_TRUE(cache->flush().ok());
  }
  auto cache = open();
  EXPECT_TRUE(cache->proven(id));
  KernelRecord again = test_record(1);
  again.created_unix_ns += 5;
  ASSERT_TRUE(cache->commit(again).ok());
  EXPECT_FALSE(cache->proven(id));
  ASSERT_TRUE(cache->flush().ok());
  EXPECT_FALSE(open()->proven(id));
}

TEST_F(KernelCacheTest, SizeIsBoundedByEvictingTheLeastServed) {
  auto o = options();
  o.bytes_max = 30'000;
  auto cache = open(o);
  std::vector<KernelId> ids;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(cache->commit(test_record(i)).ok());
    ids.push_back(kernel_id(test_record(i)));
    cache->count_served(ids.back(), 100 - i);
  }
  EXPECT_LE(cache->bytes(), o.bytes_max);
  for (int i = 100; i < 110; ++i) {
    ASSERT_TRUE(cache->commit(test_record(i)).ok());
    EXPECT_LE(cache->bytes(), o.bytes_max);
    EXPECT_TRUE(cache->load(kernel_id(test_record(i)))) << "a new entry must not be its own victim";
  }
  EXPECT_TRUE(cache->load(ids[0]));  // the most served of all stays
  EXPECT_GT(cache->counters().evicted, 0u);
  int64_t on_disk = 0;
  for (const auto& e : std::filesystem::directory_iterator(cache->kernels()->path()))
    on_disk += static_cast<int64_t>(e.file_size());
  EXPECT_EQ(on_disk, cache->bytes());
}

TEST_F(KernelCacheTest, YoungEntriesAreEvictedLast) {
  auto o = options();
  o.bytes_max = 14'000;
  auto cache = open(o);
  KernelRecord old = test_record(1), young = test_record(2);
  young.created_unix_ns = now_ - kMinute;
  ASSERT_TRUE(cache->commit(old).ok());
  cache->count_served(kernel_id(old), 5);
  ASSERT_TRUE(cache->commit(young).ok());  // never served yet
  for (int i = 10; cache->counters().evicted == 0; ++i) ASSERT_TRUE(cache->commit(test_record(i)).ok());
  EXPECT_TRUE(cache->load(kernel_id(young)));
}

TEST_F(KernelCacheTest, AnEntryLargerThanTheWholeCacheIsRefused) {
  auto o = options();
  o.bytes_max = 10'000;
  auto cache = open(o);
  const auto refused = cache->commit(test_record(1, 20'000));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), dispatch::Code::kUnsupported);
}

TEST_F(KernelCacheTest, AQuarantinedKernelNeitherLoadsNorReturns) {
  const KernelRecord r = test_record(1);
  {
    auto cache = open();
    ASSERT_TRUE(cache->commit(r).ok());
    cache->count_served(kernel_id(r), 10);
    ASSERT_TRUE(cache->standings().quarantine(kernel_ref(r), "mismatch at M=3", now_).ok());
    ASSERT_TRUE(cache->flush().ok());
  }
  auto cache = open();
  Miss miss;
  EXPECT_FALSE(cache->load(kernel_id(r), Part::kRecord, &miss));
  EXPECT_EQ(miss.reason, MissReason::kQuarantined);
  EXPECT_NE(miss.text.find("mismatch at M=3"), std::string::npos);
  EXPECT_TRUE(cache->hot_set().empty());
  EXPECT_TRUE(cache->all().empty());
  EXPECT_TRUE(cache->of_definition(dispatch::hash_bytes(r.definition)).empty());
  const auto refused = cache->commit(r);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("mismatch at M=3"), std::string::npos);
}

TEST_F(KernelCacheTest, OneLeaseADefinition) {
  auto cache = open();
  {
    auto first = Lease::try_acquire(*cache->leases(), "rms_norm.f32.N64");
    ASSERT_TRUE(first.ok()) << first.status().to_string();
    auto second = Lease::try_acquire(*cache->leases(), "rms_norm.f32.N64");
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code(), dispatch::Code::kBusy);
    EXPECT_NE(second.status().message().find(std::to_string(::getpid())), std::string::npos);
    EXPECT_TRUE(Lease::try_acquire(*cache->leases(), "rms_norm.f32.N128").ok());
    EXPECT_EQ(remove_free_leases(*cache->leases()), 1);
    EXPECT_FALSE(Lease::try_acquire(*cache->leases(), "rms_norm.f32.N64").ok());
  }
  EXPECT_TRUE(Lease::try_acquire(*cache->leases(), "rms_norm.f32.N64").ok());
}

}  // namespace
}  // namespace niche::kernels_cache
