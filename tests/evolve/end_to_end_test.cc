// A whole session with nothing faked: templates, compiler, judge, cache, store, worker.
#include <gtest/gtest.h>

#include <filesystem>

#include "evolve/definition_json.h"
#include "evolve/session/local_session.h"
#include "evolve/store/store.h"
#include "evolve/worker_client.h"
#include "tests/evolve/temp_dir.h"
#include "tests/evolve/toy_environment.h"
#include "tests/evolve/toy_family.h"
#include "tests/evolve/toy_op.h"

namespace niche::evolve {
namespace {

using Kind = SessionEvent::Kind;

class EndToEnd : public testing::Test {
 protected:
  EndToEnd() {
    EXPECT_TRUE(ops_.add(std::make_shared<testing_ops::ToyOp>()).ok());
    families_.add(std::make_shared<testing_ops::ToyFamily>());
    std::filesystem::create_directory(dir_.path() + "/cache");
    std::filesystem::permissions(dir_.path() + "/cache", std::filesystem::perms::owner_all);
    definition_ =
        *dispatch::Definition::make(ops_.find("toy_affine_relu")->schema(), dispatch::kF32, {{"N", 256}});
    request_.definition_json = definition_to_json(*definition_);
    request_.problems = {{{64}, 0.7, false}, {{200}, 0.3, false}};
    request_.cache_dir = dir_.path() + "/cache";
    request_.store_path = dir_.path() + "/search.db";
    request_.wall_seconds_max = 20;
    request_.evaluations_max = 24;
    request_.seed = 9;
  }
  // What every verified kernel of the cache must satisfy.
  void expect_served_by_cache(const std::vector<std::string>& files) {
    kernels_cache::CacheOptions options;
    options.root = request_.cache_dir;
    options.environment = testing_ops::toy_environment();
    auto cache = kernels_cache::KernelCache::open(options);
    ASSERT_TRUE(cache.ok()) << cache.status().to_string();
    for (const std::string& file : files) {
      const auto record = (*cache)->load_file(file);
      ASSERT_TRUE(record.has_value()) << file;
      EXPECT_EQ(record->definition, definition_->name());
      EXPECT_LT(record->kernel_ns, record->fallback_ns);
      EXPECT_FALSE(record->artefact.empty());
      const auto verdict = Verdict::from_json(record->verdict_json);
      ASSERT_TRUE(verdict.ok());
      EXPECT_TRUE(verdict->faster());
      EXPECT_GT(verdict->correctness_points, 8);
    }
  }
  TempDir dir_;
  dispatch::OpRegistry ops_;
  FamilyRegistry families_;
  std::shared_ptr<const dispatch::Definition> definition_;
  SessionRequest request_;
};

TEST_F(EndToEnd, AWorkerEvolvesAKernelThatTheCacheThenServes) {
  WorkerOptions options;
  options.program = NICHE_TEST_WORKER;
  options.args = {"judge"};
  options.nice = 0;  // what is tested here is not how it yields
  options.idle_scheduling = false;
  auto client = WorkerClient::spawn(options);
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  ASSERT_TRUE((*client)->start(request_).ok());
  std::vector<std::string> files;
  SessionEvent e;
  double first = 0;
  do {
    auto next = (*client)->poll(60'000);
    ASSERT_TRUE(next.has_value());
    e = *next;
    if (e.kind != Kind::kKernel) continue;
    if (files.empty()) first = e.seconds_used;
    files.push_back(e.record_file);
  } while (e.kind != Kind::kDone && e.kind != Kind::kFailed);
  EXPECT_EQ(e.kind, Kind::kDone) << e.reason;
  ASSERT_FALSE(files.empty()) << "no kernel in " << e.tried << " candidates: " << e.reason;
  EXPECT_GT(e.committed_speedup, 1.2);
  RecordProperty("first_kernel_seconds", std::to_string(first));
  std::printf("first kernel after %.2f s; %.2fx after %d candidates and %.1f s (%s)\n", first,
              e.committed_speedup, e.tried, e.seconds_used, e.reason.c_str());
  expect_served_by_cache(files);
}

TEST_F(EndToEnd, ALocalSessionDoesTheSameAndASecondOneStartsWarm) {
  int kernels = 0;
  LocalSessionOptions options;
  options.ops = &ops_;
  options.families = &families_;
  options.environment = testing_ops::toy_environment();
  options.make_evaluator = make_evaluator;
  options.on_event = [&](const SessionEvent& e) { kernels += e.kind == Kind::kKernel; };
  const auto first = run_local_session(request_, options);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(first->kind, Kind::kDone) << first->reason;
  EXPECT_GE(kernels, 1);
  EXPECT_EQ(first->kernels, kernels);

  request_.problems = {{{100}, 1, false}};
  request_.evaluations_max = 8;
  const auto second = run_local_session(request_, options);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  auto store = store::Store::open(request_.store_path);
  ASSERT_TRUE(store.ok());
  const auto sessions = (*store)->sessions(10);
  ASSERT_TRUE(sessions.ok());
  ASSERT_EQ(sessions->size(), 2u);
  const auto nodes = (*store)->nodes(sessions->front().id);
  ASSERT_TRUE(nodes.ok());
  EXPECT_EQ(nodes->front().made_by, "warm");
}

}  // namespace
}  // namespace niche::evolve
