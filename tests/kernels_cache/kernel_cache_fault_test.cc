// The disk fails, or the process dies, at every step there is: nothing acknowledged is lost, nothing half is
// used.
#include "kernels_cache/maintenance.h"
#include "test_support.h"

namespace niche::kernels_cache {
namespace {

class KernelCacheFault : public CacheTest {
 protected:
  CacheOptions faulty_options(const std::string& root) {
    CacheOptions o = options();
    o.root = root;
    o.files = &files_;
    return o;
  }
  FaultyFiles files_;
};

SeenProblem seen_at(int64_t m) {
  SeenProblem p;
  p.axes[0] = m;
  p.last_unix_ns = m;
  return p;
}

// One commit, flush, quarantine, merge of seen problems and probation mark; returns what was acknowledged.
struct Acknowledged {
  bool opened = false, committed = false, quarantined = false, remembered = false, marked = false;
};

Acknowledged work(const CacheOptions& o, int64_t now, std::unique_ptr<KernelCache>* keep) {
  Acknowledged done;
  auto cache = KernelCache::open(o);
  if (!cache.ok()) return done;
  done.opened = true;
  done.committed = (*cache)->commit(test_record(2)).ok();
  (*cache)->count_served(kernel_id(test_record(1)), 5);
  const auto flushed = (*cache)->flush();
  (void)flushed;  // the index may be lost at any time
  done.quarantined = (*cache)->standings().quarantine(kernel_ref(test_record(3)), "slow", now).ok();
  done.remembered = (*cache)->remember("d", {seen_at(2)}).ok();
  if ((*cache)->probation().begin_run(now).ok())
    done.marked = (*cache)->probation().mark(kernel_ref(test_record(1)), now).ok();
  *keep = std::move(*cache);
  return done;
}

class EveryStep : public KernelCacheFault, public ::testing::WithParamInterface<FaultyFiles::Fault> {};

TEST_P(EveryStep, LosesNothingAcknowledgedAndUsesNothingHalf) {
  const bool crash = GetParam() == FaultyFiles::Fault::kCrash;
  std::mt19937 random(20240607);
  int steps = 0, commits_seen = 0, commits_refused = 0;
  for (int at = 1; at == 1 || at <= steps; ++at) {
    for (int cut = 0; cut < (crash ? 6 : 1); ++cut) {
      SCOPED_TRACE("step " + std::to_string(at) + " cut " + std::to_string(cut));
      const std::string root = scratch_.path() + "/at" + std::to_string(at) + "-" + std::to_string(cut);
      {
        CacheOptions before = options();
        before.root = root;
        auto cache = open(before);
        ASSERT_TRUE(cache->commit(test_record(1)).ok());
        ASSERT_TRUE(cache->commit(test_record(3)).ok());
        ASSERT_TRUE(cache->remember("d", {seen_at(1)}).ok());
      }
      if (at == 1 && cut == 0) {  // how many steps are there?
        std::unique_ptr<KernelCache> keep;
        files_.arm(FaultyFiles::Fault::kNone, 0);
        const std::string copy = root + "-dry";
        std::filesystem::copy(root, copy, std::filesystem::copy_options::recursive);
        for (const auto& e : std::filesystem::recursive_directory_iterator(copy))
          std::filesystem::permissions(e.path(), std::filesystem::perms::owner_all);
        std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
        const Acknowledged all = work(faulty_options(copy), now_, &keep);
        ASSERT_TRUE(all.committed && all.quarantined && all.remembered && all.marked);
        steps = files_.steps();
        ASSERT_GT(steps, 20);
      }
      Acknowledged done;
      {
        std::unique_ptr<KernelCache> keep;
        files_.arm(GetParam(), at);
        done = work(faulty_options(root), now_, &keep);
        if (crash) files_.power_cut(random);
      }
      commits_seen += done.committed;
      commits_refused += !done.committed;

      CacheOptions after = options();
      after.root = root;
      auto cache = open(after);
      ASSERT_NE(cache, nullptr);
      cache->probation().startup_scan(cache->standings(), now_);
      cache->refresh();
      const auto report = verify_entries(*cache, /*remove_bad=*/false);
      ASSERT_TRUE(report.ok());
      EXPECT_TRUE(report->bad.empty()) << report->bad[0].text;
      if (done.committed) {
        const auto r = cache->load(kernel_id(test_record(2)));
        ASSERT_TRUE(r);
        expect_equal(*r, test_record(2));
      }
      const StandingState condemned = cache->standings().state(kernel_id(test_record(3)));
      if (done.quarantined) {
        EXPECT_EQ(condemned, StandingState::kQuarantined);
      } else {
        EXPECT_NE(condemned, StandingState::kHeld);
      }
      const auto seen = cache->seen("d");
      ASSERT_GE(seen.size(), done.remembered ? 2u : 1u) << "what an earlier process remembered stays";
      EXPECT_EQ(seen.back().axes[0], 1);
      const StandingState marked = cache->standings().state(kernel_id(test_record(1)));
      if (done.marked) {
        EXPECT_EQ(marked, StandingState::kHeld);
      } else if (marked == StandingState::kClear) {
        EXPECT_TRUE(cache->load(kernel_id(test_record(1))));
      }
    }
  }
  EXPECT_GT(commits_seen, 0);
  EXPECT_GT(commits_refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Faults, EveryStep,
                         ::testing::Values(FaultyFiles::Fault::kError, FaultyFiles::Fault::kTorn,
                                           FaultyFiles::Fault::kCrash),
                         [](const auto& info) {
                           return std::string(info.param == FaultyFiles::Fault::kError  ? "Error"
                                              : info.param == FaultyFiles::Fault::kTorn ? "TornWrite"
                                                                                        : "CrashAndPowerCut");
                         });

TEST_F(KernelCacheFault, AFullDiskFailsTheCommitByNameAndKeepsTheOldEntry) {
  const std::string root = scratch_.path() + "/cache";
  auto cache = open(faulty_options(root));
  ASSERT_TRUE(cache->commit(test_record(1)).ok());
  KernelRecord better = test_record(1);
  better.kernel_ns = 1;
  files_.arm(FaultyFiles::Fault::kTorn, 3);  // index lock, temporary file, first write
  const auto refused = cache->commit(better);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), dispatch::Code::kIo);
  EXPECT_NE(refused.status().message().find("No space left on device"), std::string::npos);
  EXPECT_NE(refused.status().message().find(kernel_id(better).file_name()), std::string::npos);
  EXPECT_EQ(cache->counters().commit_failed, 1u);
  files_.arm(FaultyFiles::Fault::kNone, 0);
  EXPECT_EQ(cache->load(kernel_id(better))->kernel_ns, 500);
  for (const auto& e : std::filesystem::directory_iterator(cache->kernels()->path()))
    EXPECT_EQ(e.path().filename().string().find(".tmp"), std::string::npos)
        << "a leftover where the disk could remove it";
}

TEST_F(KernelCacheFault, AReadErrorIsAMissAndTheEntryIsNotForgotten) {
  auto cache = open(faulty_options(scratch_.path() + "/cache"));
  ASSERT_TRUE(cache->commit(test_record(1)).ok());
  files_.fail_reads(true);
  Miss miss;
  EXPECT_FALSE(cache->load(kernel_id(test_record(1)), Part::kRecord, &miss));
  EXPECT_EQ(miss.reason, MissReason::kIo);
  cache->refresh();
  files_.fail_reads(false);
  EXPECT_TRUE(cache->load(kernel_id(test_record(1))));
}

TEST_F(KernelCacheFault, ADirectoryWhoseStandingsCannotBeReadIsNotUsed) {
  const std::string root = scratch_.path() + "/cache";
  { ASSERT_TRUE(open(faulty_options(root))->commit(test_record(1)).ok()); }
  files_.fail_reads(true);
  EXPECT_EQ(KernelCache::open(faulty_options(root)).status().code(), dispatch::Code::kIo);
}

TEST_F(KernelCacheFault, AnEntryTheDiskFailedForIsReadAgainLater) {
  const std::string root = scratch_.path() + "/cache";
  auto cache = open(faulty_options(root));
  {
    CacheOptions o = options();
    o.root = root;
    ASSERT_TRUE(open(o)->commit(test_record(1)).ok());
  }
  files_.fail_contents(true);
  EXPECT_TRUE(cache->refresh().added.empty());
  files_.fail_contents(false);
  EXPECT_EQ(cache->refresh().added.size(), 1u);
}

TEST_F(KernelCacheFault, AQuarantineThatCannotBeWrittenHoldsAndIsWrittenLater) {
  const std::string root = scratch_.path() + "/cache";
  auto cache = open(faulty_options(root));
  ASSERT_TRUE(cache->commit(test_record(1)).ok());
  files_.arm(FaultyFiles::Fault::kCrash, 1);  // nothing can be written
  EXPECT_EQ(cache->standings().quarantine(kernel_ref(test_record(1)), "fault", now_).code(),
            dispatch::Code::kIo);
  cache->refresh();
  EXPECT_FALSE(cache->load(kernel_id(test_record(1))));
  files_.arm(FaultyFiles::Fault::kNone, 0);
  cache->refresh();
  CacheOptions o = options();
  o.root = root;
  auto other = open(o);
  EXPECT_EQ(other->standings().state(kernel_id(test_record(1))), StandingState::kQuarantined);
  EXPECT_EQ(other->standings().find(kernel_id(test_record(1)))->reason, "fault");
}

TEST_F(KernelCacheFault, AHoldThatCouldNotBeWrittenDoesNotOutliveItsReverification) {
  auto cache = open(faulty_options(scratch_.path() + "/cache"));
  const KernelRecord record = test_record(1);
  ASSERT_TRUE(cache->commit(record).ok());
  files_.arm(FaultyFiles::Fault::kCrash, 1);
  ASSERT_FALSE(cache->standings().hold(kernel_ref(record), "crash", "run-1", now_).ok());
  EXPECT_EQ(cache->standings().state(kernel_id(record)), StandingState::kHeld);
  files_.arm(FaultyFiles::Fault::kNone, 0);
  ASSERT_TRUE(cache->commit(record).ok());
  cache->refresh();  // writes again what the disk refused
  EXPECT_EQ(cache->standings().state(kernel_id(record)), StandingState::kCleared);
  EXPECT_TRUE(cache->load(kernel_id(record)));
}

TEST_F(KernelCacheFault, AMarkThatIsNotDurableForbidsServing) {
  auto cache = open(faulty_options(scratch_.path() + "/cache"));
  ASSERT_TRUE(cache->probation().begin_run(now_).ok());
  files_.arm(FaultyFiles::Fault::kError, 3, "Input/output error");  // the fsync of the mark
  EXPECT_EQ(cache->probation().mark(kernel_ref(test_record(1)), now_).code(), dispatch::Code::kIo);
  EXPECT_FALSE(cache->probation().marked(kernel_id(test_record(1))));
}

}  // namespace
}  // namespace niche::kernels_cache
