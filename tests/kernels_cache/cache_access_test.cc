// Whose cache a directory is: environments, owners, readers that may not write.
#include <sys/stat.h>

#include "kernels_cache/kernel_cache.h"
#include "test_support.h"

namespace niche::kernels_cache {
namespace {

using KernelCacheTest = CacheTest;

TEST_F(KernelCacheTest, AReaderOfAnotherEnvironmentIsToldWhatMakesItAnother) {
  auto o = options();
  std::filesystem::create_directory(o.root);
  o.access = Access::kReadOnly;
  const auto refusal = [&] {
    const auto refused = KernelCache::open(o);
    EXPECT_EQ(refused.status().code(), dispatch::Code::kNotFound);
    return refused.status().message();
  };
  EXPECT_NE(refusal().find(o.environment.directory_name() + ") is there yet"), std::string::npos)
      << refusal();
  EXPECT_EQ(refusal().find("other environments"), std::string::npos) << refusal();
  for (int i = 0; i < 5; ++i) {
    auto other = options();
    other.environment.driver = "driver " + std::to_string(i);
    (void)open(other);
  }
  EXPECT_NE(refusal().find("driver: 'driver "), std::string::npos) << refusal();
  EXPECT_TRUE(refusal().ends_with("; and 2 more")) << refusal();
  o.environment.compiler.clear();  // whoever has none takes any: that is no difference
  EXPECT_EQ(refusal().find("compiler"), std::string::npos) << refusal();
}

TEST_F(KernelCacheTest, AnEntryOfAnotherEnvironmentIsForeign) {
  auto o = options();
  o.environment.driver = "other";
  auto other = open(o);
  ASSERT_TRUE(other->commit(test_record(1)).ok());
  auto cache = open();
  EXPECT_TRUE(cache->all().empty());
  const KernelId id = kernel_id(test_record(1));
  write_bytes(entry_path(*cache, id), bytes_of(entry_path(*other, id)));
  ::chmod(entry_path(*cache, id).c_str(), 0600);
  EXPECT_TRUE(cache->refresh().added.empty());
  EXPECT_EQ(misses(*cache, MissReason::kForeign), 1u);
}

TEST_F(KernelCacheTest, RefusesADirectoryThatOthersMayWrite) {
  { auto cache = open(); }
  const std::string root = scratch_.path() + "/cache";
  std::string home;
  for (const auto& e : std::filesystem::directory_iterator(root)) home = e.path();
  for (const std::string& path : {root, home, home + "/kernels", home + "/standings", home + "/probation"}) {
    ASSERT_EQ(::chmod(path.c_str(), 0770), 0);
    auto refused = KernelCache::open(options());
    ASSERT_FALSE(refused.ok()) << path;
    EXPECT_EQ(refused.status().code(), dispatch::Code::kUnsupported);
    EXPECT_NE(refused.status().message().find(path + ": mode 0770 lets group or others write; make it 0700"),
              std::string::npos)
        << refused.status().to_string();
    ASSERT_EQ(::chmod(path.c_str(), 0700), 0);
  }
  EXPECT_TRUE(KernelCache::open(options()).ok());
}

TEST_F(KernelCacheTest, RefusesADirectoryOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "giving a directory away needs root";
  { auto cache = open(); }
  ASSERT_EQ(::chown((scratch_.path() + "/cache").c_str(), 12345, 12345), 0);
  auto refused = KernelCache::open(options());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("belongs to user 12345"), std::string::npos);
}

TEST_F(KernelCacheTest, ReadOnlyNeedsNoCompilerAndWritesNothing) {
  {
    auto cache = open();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(cache->commit(test_record(i)).ok());
    cache->count_served(kernel_id(test_record(1)), 10);
    ASSERT_TRUE(cache->standings().quarantine(kernel_ref(test_record(2)), "slow", now_).ok());
    ASSERT_TRUE(cache->flush().ok());
  }
  const auto snapshot = [&] {
    std::map<std::string, std::string> all;
    for (const auto& e : std::filesystem::recursive_directory_iterator(scratch_.path() + "/cache"))
      all[e.path()] = e.is_regular_file() ? bytes_of(e.path()) : "";
    return all;
  };
  const auto before = snapshot();
  auto o = options();
  o.access = Access::kReadOnly;
  o.environment.compiler.clear();
  auto cache = open(o);
  ASSERT_EQ(cache->hot_set().size(), 1u);
  EXPECT_TRUE(cache->load(cache->hot_set()[0]));
  EXPECT_EQ(cache->all().size(), 2u);  // the shipped quarantine holds
  EXPECT_EQ(cache->commit(test_record(9)).status().code(), dispatch::Code::kUnsupported);
  EXPECT_EQ(cache->flush().code(), dispatch::Code::kUnsupported);
  EXPECT_EQ(cache->probation().begin_run(now_).code(), dispatch::Code::kUnsupported);
  // A quarantine holds in this process though it cannot be kept.
  EXPECT_EQ(cache->standings().quarantine(kernel_ref(test_record(1)), "fault", now_).code(),
            dispatch::Code::kUnsupported);
  cache->refresh();
  EXPECT_FALSE(cache->load(kernel_id(test_record(1))));
  EXPECT_EQ(snapshot(), before);
}

TEST_F(KernelCacheTest, ReadOnlyKeepsItsStateInAStateDirectory) {
  {
    auto cache = open();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(cache->commit(test_record(i)).ok());
    ASSERT_TRUE(cache->standings().quarantine(kernel_ref(test_record(2)), "slow", now_).ok());
  }
  auto o = options();
  o.access = Access::kReadOnly;
  o.state_root = scratch_.path() + "/state";
  {
    auto cache = open(o);
    ASSERT_TRUE(cache->standings().quarantine(kernel_ref(test_record(1)), "fault", now_).ok());
    ASSERT_TRUE(cache->probation().begin_run(now_).ok());
    ASSERT_TRUE(cache->probation().mark(kernel_ref(test_record(0)), now_).ok());
    ASSERT_TRUE(cache->probation().end_run().ok());
  }
  auto cache = open(o);
  EXPECT_EQ(cache->all(), std::vector<KernelId>{kernel_id(test_record(0))});
}

TEST_F(KernelCacheTest, WithoutACompilerTheDirectoryUsedLastIsTaken) {
  auto o = options();
  o.environment.compiler = "g++ 12";
  ASSERT_TRUE(open(o)->commit(test_record(1)).ok());
  o.environment.compiler = "g++ 13";
  {
    auto cache = open(o);
    ASSERT_TRUE(cache->commit(test_record(2)).ok());
    ASSERT_TRUE(cache->flush().ok());
  }
  o.environment.compiler.clear();
  o.access = Access::kReadOnly;
  EXPECT_EQ(open(o)->all(), std::vector<KernelId>{kernel_id(test_record(2))});
  o.environment.isa_flags = {"avx2"};  // another machine: nothing fits
  EXPECT_EQ(KernelCache::open(o).status().code(), dispatch::Code::kNotFound);
}

TEST_F(KernelCacheTest, ADamagedEnvironmentFileIsWrittenAgain) {
  std::string file;
  {
    auto cache = open();
    file = cache->home().path() + "/environment.txt";
    ASSERT_TRUE(cache->commit(test_record(1)).ok());
  }
  const std::string whole = bytes_of(file);
  write_bytes(file, "compiler: g++ 99");
  EXPECT_TRUE(open()->load(kernel_id(test_record(1))));
  EXPECT_EQ(bytes_of(file), whole);
  // A process without a compiler cannot tell what such a directory is for, and leaves it.
  write_bytes(file, "compiler: g++ 99");
  auto o = options();
  o.environment.compiler.clear();
  o.access = Access::kReadOnly;
  EXPECT_EQ(KernelCache::open(o).status().code(), dispatch::Code::kNotFound);
}

TEST_F(KernelCacheTest, ADirectoryUnderAnotherEnvironmentsNameServesNothing) {
  std::string other_home;
  auto o = options();
  o.environment.driver = "other";
  {
    auto other = open(o);
    ASSERT_TRUE(other->commit(test_record(1)).ok());
    ASSERT_TRUE(other->flush().ok());
    other_home = other->home().path();
  }
  std::filesystem::rename(other_home, scratch_.path() + "/cache/" + test_environment().directory_name());
  auto cache = open();
  EXPECT_TRUE(cache->all().empty());
  EXPECT_FALSE(cache->load(kernel_id(test_record(1))));
  EXPECT_GE(misses(*cache, MissReason::kForeign), 1u);
}

TEST_F(KernelCacheTest, ReadOnlyOfNothingIsNotFound) {
  auto o = options();
  o.access = Access::kReadOnly;
  EXPECT_EQ(KernelCache::open(o).status().code(), dispatch::Code::kNotFound);
}

}  // namespace
}  // namespace niche::kernels_cache
