#include "kernels_cache/maintenance.h"

#include <fstream>

#include "test_support.h"

namespace niche::kernels_cache {
namespace {

using MaintenanceTest = CacheTest;

void flip_byte(const std::string& path, std::streamoff at) {
  std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(at);
  const char c = static_cast<char>(f.get() ^ 1);
  f.seekp(at);
  f.put(c);
}

TEST_F(MaintenanceTest, VerifyNamesEachBadEntryAndRemovesItOnRequest) {
  auto cache = open();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(cache->commit(test_record(i)).ok());
  flip_byte(entry_path(*cache, kernel_id(test_record(1))),
            -1 + static_cast<std::streamoff>(
                     std::filesystem::file_size(entry_path(*cache, kernel_id(test_record(1))))));
  std::ofstream(cache->kernels()->path() + "/README") << "not an entry";
  auto report = verify_entries(*cache, /*remove_bad=*/false);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->good, 3);
  ASSERT_EQ(report->bad.size(), 2u);
  EXPECT_EQ(cache->entries().size(), 4u);
  report = verify_entries(*cache, /*remove_bad=*/true);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(cache->entries().size(), 3u);
  report = verify_entries(*cache, false);
  ASSERT_EQ(report->bad.size(), 1u);  // a file that no cache made is left alone
  EXPECT_EQ(report->bad[0].file, "README");
}

TEST_F(MaintenanceTest, WhatWasExportedCanBeImportedElsewhere) {
  const std::string archive = scratch_.path() + "/kernels.ka";
  {
    auto cache = open();
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(cache->commit(test_record(i)).ok());
    cache->count_served(kernel_id(test_record(2)), 77);
    ASSERT_TRUE(cache->standings().quarantine(kernel_ref(test_record(4)), "slow", now_).ok());
    auto exported = export_entries(*cache, {}, archive);
    ASSERT_TRUE(exported.ok()) << exported.status().to_string();
    EXPECT_EQ(exported->done, 4);  // not the quarantined one
  }
  auto o = options();
  o.root = scratch_.path() + "/other";
  auto cache = open(o);
  ASSERT_TRUE(cache->standings().quarantine(kernel_ref(test_record(0)), "slow here", now_).ok());
  ASSERT_TRUE(cache->commit(test_record(1)).ok());
  auto imported = import_entries(*cache, archive);
  ASSERT_TRUE(imported.ok()) << imported.status().to_string();
  EXPECT_EQ(imported->done, 2);
  EXPECT_EQ(imported->skipped, 2);
  EXPECT_TRUE(imported->refused.empty());
  expect_equal(*cache->load(kernel_id(test_record(3))), test_record(3));
  EXPECT_EQ(cache->hot_set(),
            std::vector<KernelId>{kernel_id(test_record(2))});  // order travels with the records
}

TEST_F(MaintenanceTest, AnArchiveOfAnotherEnvironmentIsRefusedByName) {
  const std::string archive = scratch_.path() + "/kernels.ka";
  auto cache = open();
  ASSERT_TRUE(cache->commit(test_record(1)).ok());
  ASSERT_TRUE(export_entries(*cache, {}, archive).ok());
  auto o = options();
  o.environment.libraries = {"torch 2.12.0"};
  auto other = open(o);
  const auto refused = import_entries(*other, archive);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), dispatch::Code::kUnsupported);
  EXPECT_NE(refused.status().message().find("libraries: 'torch 2.11.0' != 'torch 2.12.0'"), std::string::npos)
      << refused.status().to_string();
}

TEST_F(MaintenanceTest, ADamagedArchiveGivesWhatIsWhole) {
  const std::string archive = scratch_.path() + "/kernels.ka";
  auto cache = open();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(cache->commit(test_record(i)).ok());
  ASSERT_TRUE(export_entries(*cache, {}, archive).ok());
  flip_byte(archive,
            static_cast<std::streamoff>(std::filesystem::file_size(archive)) - 1);  // the last artefact
  auto o = options();
  o.root = scratch_.path() + "/other";
  auto other = open(o);
  auto imported = import_entries(*other, archive);
  ASSERT_TRUE(imported.ok());
  EXPECT_EQ(imported->done, 2);
  ASSERT_EQ(imported->refused.size(), 1u);
  EXPECT_NE(imported->refused[0].find("entry 2"), std::string::npos);

  std::filesystem::resize_file(archive, std::filesystem::file_size(archive) - 10);
  EXPECT_EQ(import_entries(*other, archive).status().code(), dispatch::Code::kCorrupt);
  flip_byte(archive, 0);
  EXPECT_EQ(import_entries(*other, archive).status().code(), dispatch::Code::kUnsupported);
  EXPECT_EQ(import_entries(*other, archive + "x").status().code(), dispatch::Code::kNotFound);
}

TEST_F(MaintenanceTest, AnArchiveThatOthersMayWriteIsRefused) {
  const std::string archive = scratch_.path() + "/kernels.ka";
  auto cache = open();
  ASSERT_TRUE(cache->commit(test_record(1)).ok());
  ASSERT_TRUE(export_entries(*cache, {}, archive).ok());
  ASSERT_EQ(::chmod(archive.c_str(), 0666), 0);
  EXPECT_EQ(import_entries(*cache, archive).status().code(), dispatch::Code::kUnsupported);
}

TEST_F(MaintenanceTest, PruneKeepsTheMostServed) {
  auto cache = open();
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(cache->commit(test_record(i)).ok());
    cache->count_served(kernel_id(test_record(i)), i * 10);
  }
  PruneOptions p;
  p.bytes_max = cache->bytes() / 2;
  auto report = prune(*cache, p);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->entries, 3);
  EXPECT_EQ(cache->all(), (std::vector<KernelId>{kernel_id(test_record(5)), kernel_id(test_record(4)),
                                                 kernel_id(test_record(3))}));
}

TEST_F(MaintenanceTest, PruneTakesIdleCondemnedLeftoverAndForeignThings) {
  auto cache = open();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(cache->commit(test_record(i)).ok());
  cache->count_served(kernel_id(test_record(0)), 1);
  ASSERT_TRUE(cache->standings().quarantine(kernel_ref(test_record(1)), "slow", now_ - kMinute).ok());
  { ASSERT_TRUE(Lease::try_acquire(*cache->leases(), "d").ok()); }
  std::ofstream(cache->kernels()->path() + "/.tmp-1-1-00") << "half an entry";
  auto o = options();
  o.environment.driver = "old";
  const std::string sibling = open(o)->home().path();
  now_ = 4'000'000'000 * kSecond;  // far past the leftover's age
  PruneOptions p;
  p.quarantined = true;
  p.unserved_older_than_ns = kMinute;
  p.standings_older_than_ns = kSecond;
  p.other_environments = true;
  auto report = prune(*cache, p);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->entries, 2);
  EXPECT_EQ(report->standings, 1);
  EXPECT_EQ(report->leases, 1);
  EXPECT_EQ(report->leftovers, 1);
  EXPECT_EQ(report->environments, 1);
  EXPECT_FALSE(std::filesystem::exists(sibling));
  EXPECT_EQ(cache->all(), std::vector<KernelId>{kernel_id(test_record(0))});
}

}  // namespace
}  // namespace niche::kernels_cache
