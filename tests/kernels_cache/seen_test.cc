// Problems that traffic showed, across processes.
#include "kernels_cache/seen.h"

#include <sys/stat.h>

#include "test_support.h"

namespace niche::kernels_cache {
namespace {

const std::string kDefinition = "rms_norm.f32.N1024", kOther = "rms_norm.f32.N2048";

SeenProblem at(int64_t m, int64_t last_unix_ns) {
  SeenProblem p;
  p.axes[0] = m;
  p.layout = dispatch::LayoutClass::plain(6).bits();
  p.last_unix_ns = last_unix_ns;
  return p;
}

class SeenTest : public CacheTest {
 protected:
  static std::vector<int64_t> rows(const std::vector<SeenProblem>& problems) {
    std::vector<int64_t> m;
    for (const SeenProblem& p : problems) m.push_back(p.axes[0]);
    return m;
  }
  static std::string file_of(const KernelCache& cache, const std::string& definition) {
    // The only file that holds this name.
    for (const auto& e : std::filesystem::directory_iterator(cache.home().path() + "/seen"))
      if (bytes_of(e.path().string()).find(definition) != std::string::npos) return e.path().string();
    return {};
  }
  using Rows = std::vector<int64_t>;
};

TEST_F(SeenTest, WhatWasRememberedIsThereAfterARestartTheOneSeenLastFirst) {
  EXPECT_TRUE(open()->seen(kDefinition).empty());
  EXPECT_TRUE(log_.empty()) << "nothing remembered yet is no miss";
  ASSERT_TRUE(open()->remember(kDefinition, {at(3, 10), at(5, 30), at(4, 20)}).ok());
  auto cache = open();
  const auto seen = cache->seen(kDefinition);
  EXPECT_EQ(rows(seen), (Rows{5, 4, 3}));
  EXPECT_EQ(seen[0].layout, at(5, 30).layout);
  EXPECT_EQ(seen[0].last_unix_ns, 30);
  EXPECT_TRUE(cache->seen(kOther).empty());
}

TEST_F(SeenTest, ProcessesAddToEachOther) {
  auto one = open(), two = open();
  ASSERT_TRUE(one->remember(kDefinition, {at(3, 10), at(4, 20)}).ok());
  ASSERT_TRUE(two->remember(kDefinition, {at(4, 15), at(5, 30)}).ok());
  const auto seen = one->seen(kDefinition);
  EXPECT_EQ(rows(seen), (Rows{5, 4, 3}));
  EXPECT_EQ(seen[1].last_unix_ns, 20) << "the later time stays";
  // Other demands or another layout make another problem.
  SeenProblem strict = at(4, 40), loose = at(4, 50);
  strict.constraints = dispatch::ConstraintSet().deterministic().bits();
  loose.layout = dispatch::LayoutClass::plain(2).bits();
  ASSERT_TRUE(two->remember(kDefinition, {strict, loose}).ok());
  EXPECT_EQ(rows(one->seen(kDefinition)), (Rows{4, 4, 5, 4, 3}));
}

TEST_F(SeenTest, WhileAnotherProcessMergesNobodyWaits) {
  auto cache = open();
  ASSERT_TRUE(cache->remember(kDefinition, {at(3, 10)}).ok());
  {
    const auto fd = posix_files().open(AT_FDCWD, cache->home().path() + "/seen/merge.lock", O_RDWR, 0);
    ASSERT_TRUE(fd.ok());
    const OwnedFd held(posix_files(), *fd);
    ASSERT_TRUE(*posix_files().try_lock(held.get()));
    EXPECT_EQ(cache->remember(kDefinition, {at(4, 20)}).code(), dispatch::Code::kBusy);
    EXPECT_EQ(rows(cache->seen(kDefinition)), (Rows{3})) << "reading needs no lock";
  }
  EXPECT_TRUE(cache->remember(kDefinition, {at(4, 20)}).ok());
  EXPECT_EQ(rows(cache->seen(kDefinition)), (Rows{4, 3}));
}

TEST_F(SeenTest, ABadFileIsALoggedCountedMissAndNothingElseIsLost) {
  const struct {
    MissReason want;
    std::function<void(const std::string& path)> spoil;
  } cases[] = {
      {MissReason::kTruncated, [](const std::string& p) { std::filesystem::resize_file(p, 0); }},
      {MissReason::kTruncated, [](const std::string& p) { std::filesystem::resize_file(p, 90); }},
      {MissReason::kCorrupt,
       [](const std::string& p) {
         auto b = bytes_of(p);
         b[b.size() - 60] ^= 1;
         write_bytes(p, b);
       }},
      {MissReason::kForeign, [](const std::string& p) { write_bytes(p, std::string(500, 'x')); }},
      {MissReason::kForeign, [](const std::string& p) { ::chmod(p.c_str(), 0666); }},
      {MissReason::kStale,
       [](const std::string& p) {
         auto b = bytes_of(p);
         b[12] = 9;
         write_bytes(p, b);
       }},
  };
  int i = 0;
  for (const auto& c : cases) {
    auto o = options();
    o.root = scratch_.path() + "/case" + std::to_string(i);
    auto cache = open(o);
    ASSERT_TRUE(cache->commit(test_record(1)).ok());
    ASSERT_TRUE(cache->remember(kDefinition, {at(3, 10)}).ok());
    ASSERT_TRUE(cache->remember(kOther, {at(7, 10)}).ok());
    const std::string path = file_of(*cache, kDefinition);
    ASSERT_FALSE(path.empty());
    c.spoil(path);
    cache = open(o);
    log_.clear();
    EXPECT_TRUE(cache->seen(kDefinition).empty()) << i;
    EXPECT_EQ(misses(*cache, c.want), 1u) << i;
    ASSERT_EQ(log_.size(), 1u) << i;
    EXPECT_NE(log_[0].find(path), std::string::npos) << log_[0];
    EXPECT_EQ(rows(cache->seen(kOther)), (Rows{7})) << i;
    EXPECT_TRUE(cache->load(kernel_id(test_record(1)))) << i;
    // The next process to see something there has a whole file again.
    ASSERT_TRUE(cache->remember(kDefinition, {at(4, 20)}).ok()) << i;
    EXPECT_EQ(rows(open(o)->seen(kDefinition)), (Rows{4})) << i;
    ++i;
  }
}

TEST_F(SeenTest, AnotherMachineOrLibraryInheritsNothing) {
  auto cache = open();
  ASSERT_TRUE(cache->remember(kDefinition, {at(3, 10)}).ok());
  const std::string path = file_of(*cache, kDefinition);
  for (const bool library : {false, true}) {
    auto o = options();
    (library ? o.environment.libraries[0] : o.environment.device_model) += " other";
    auto other = open(o);
    EXPECT_TRUE(other->seen(kDefinition).empty()) << library;
    // Nor when somebody copies the file over.
    ASSERT_TRUE(other->remember(kDefinition, {at(9, 10)}).ok());
    const std::string theirs = file_of(*other, kDefinition);
    ASSERT_NE(theirs, path);
    std::filesystem::copy_file(path, theirs, std::filesystem::copy_options::overwrite_existing);
    EXPECT_TRUE(other->seen(kDefinition).empty()) << library;
    EXPECT_EQ(misses(*other, MissReason::kForeign), 1u) << library;
  }
  // The file of another Definition under this one's name.
  ASSERT_TRUE(cache->remember(kOther, {at(7, 10)}).ok());
  std::filesystem::copy_file(file_of(*cache, kOther), path,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(cache->seen(kDefinition).empty());
}

TEST_F(SeenTest, IsBounded) {
  auto cache = open();
  const auto count = static_cast<int64_t>(SeenStore::kProblemsMax);
  std::vector<SeenProblem> many;
  for (int64_t m = 1; m <= count; ++m) many.push_back(at(m, m));
  ASSERT_TRUE(cache->remember(kDefinition, many).ok());
  ASSERT_TRUE(cache->remember(kDefinition, {at(count + 1, count + 1)}).ok());
  auto seen = cache->seen(kDefinition);
  ASSERT_EQ(seen.size(), SeenStore::kProblemsMax);
  EXPECT_EQ(seen.front().axes[0], count + 1);
  EXPECT_EQ(seen.back().axes[0], 2) << "the one seen longest ago gave way";

  for (size_t i = 0; i < SeenStore::kFilesMax; ++i)
    ASSERT_TRUE(cache->remember("d" + std::to_string(i), {at(1, 1)}).ok());
  size_t files = 0;
  for (const auto& e : std::filesystem::directory_iterator(cache->home().path() + "/seen"))
    files += e.path().extension() == ".seen";
  EXPECT_EQ(files, SeenStore::kFilesMax);
  EXPECT_TRUE(cache->seen(kDefinition).empty()) << "the file written longest ago gave way";
  EXPECT_EQ(cache->seen("d0").size(), 1u);
}

TEST_F(SeenTest, AClockThatWasAheadDoesNotKeepItsProblemsInFront) {
  auto cache = open();
  ASSERT_TRUE(cache->remember(kDefinition, {at(3, INT64_MAX)}).ok());
  EXPECT_EQ(cache->seen(kDefinition)[0].last_unix_ns, now_);
  SeenProblem negative = at(-1, 10);
  EXPECT_EQ(cache->remember(kDefinition, {negative}).code(), dispatch::Code::kInvalid);
}

TEST_F(SeenTest, AReadOnlyCacheGivesWhatCameWithItAndRemembersInTheStateDirectory) {
  ASSERT_TRUE(open()->remember(kDefinition, {at(3, 10)}).ok());
  auto o = options();
  o.access = Access::kReadOnly;
  auto without = open(o);
  EXPECT_EQ(rows(without->seen(kDefinition)), (Rows{3}));
  EXPECT_EQ(without->remember(kDefinition, {at(4, 20)}).code(), dispatch::Code::kUnsupported);
  o.state_root = scratch_.path() + "/state";
  ASSERT_TRUE(open(o)->remember(kDefinition, {at(4, 20)}).ok());
  EXPECT_EQ(rows(open(o)->seen(kDefinition)), (Rows{4, 3}));
  EXPECT_EQ(rows(open()->seen(kDefinition)), (Rows{3}));
}

// Without its directory the cache serves, and says what it lost.
TEST_F(SeenTest, ADirectoryThatOthersMayWriteCostsOnlyWhatWasRemembered) {
  auto cache = open();
  ASSERT_TRUE(cache->commit(test_record(1)).ok());
  ASSERT_TRUE(cache->remember(kDefinition, {at(3, 10)}).ok());
  ::chmod((cache->home().path() + "/seen").c_str(), 0777);
  log_.clear();
  cache = open();
  EXPECT_EQ(misses(*cache, MissReason::kForeign), 1u);
  EXPECT_EQ(log_.size(), 1u);
  EXPECT_TRUE(cache->seen(kDefinition).empty());
  EXPECT_TRUE(cache->load(kernel_id(test_record(1))));
  EXPECT_EQ(cache->remember(kDefinition, {at(4, 20)}).code(), dispatch::Code::kUnsupported);
}

}  // namespace
}  // namespace niche::kernels_cache
