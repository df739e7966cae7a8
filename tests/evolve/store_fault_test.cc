// The store under kill -9 and under many processes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <set>
#include <vector>

#include "evolve/search/rng.h"
#include "evolve/store/store.h"
#include "tests/evolve/store_rows.h"
#include "tests/evolve/temp_dir.h"

namespace niche::evolve::store {
namespace {

// Writes batches of nodes with their evaluations until killed; acknowledges each commit with one number on
// `fd`.
[[noreturn]] void write_for_ever(const std::string& path, const std::string& session, int first, int fd) {
  auto opened = Store::open(path);
  if (!opened.ok()) _exit(2);
  Store& store = **opened;
  if (first == 0 && !store.begin_session(session_row(session)).ok()) _exit(3);
  for (int id = first;; ++id) {
    NodeRow n;
    n.id = id;
    n.made_by = "kill";
    n.family = "f";
    n.point_json = "{}";
    n.source_hash = "hash " + std::to_string(id);
    n.parent = id - 1;
    const std::string source(200 + id % 3000, 's');
    EvaluationRow e;
    e.node = id;
    e.kind = "screen";
    e.outcome = "screened";
    e.gate = "none";
    e.cost = 1.0 + id;
    e.verdict_json = "{}";
    if (!store.add_nodes(session, {&n, 1}).ok()) _exit(4);
    if (!store.put_blob(source).ok()) _exit(7);
    if (!store.add_evaluations(session, {&e, 1}).ok()) _exit(5);
    if (write(fd, &id, sizeof id) != sizeof id) _exit(6);
  }
}

TEST(StoreFault, KillLosesNothingAcknowledged) {
  const TempDir dir;
  const std::string path = dir.path() + "/search.db";
  search::Rng rng(7);
  int acknowledged = -1;  // by the writers so far
  for (int round = 0; round < 40; ++round) {
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    const int first = acknowledged + 1;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(fds[0]);
      write_for_ever(path, "s", first, fds[1]);
    }
    close(fds[1]);
    // Dies after a random number of commits, and then at a random moment inside the next ones.
    const auto commits = static_cast<int>(1 + rng.below(12));
    int id = -1;
    for (int i = 0; i < commits && read(fds[0], &id, sizeof id) == sizeof id; ++i) acknowledged = id;
    uint64_t spun = 0;
    for (size_t spin = rng.below(100'000); spin > 0; --spin) spun ^= rng.next();
    ASSERT_NE(spun, 1u);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "writer ended by itself with " << WEXITSTATUS(status);
    while (read(fds[0], &id, sizeof id) == sizeof id) acknowledged = id;
    close(fds[0]);

    auto store = Store::open(path);  // checks every page
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    const auto nodes = (*store)->nodes("s");
    const auto evaluations = (*store)->evaluations("s");
    ASSERT_TRUE(nodes.ok() && evaluations.ok());
    ASSERT_GE(static_cast<int>(evaluations->size()), acknowledged + 1);
    for (int i = 0; i < static_cast<int>(nodes->size()); ++i)
      ASSERT_EQ((*nodes)[static_cast<size_t>(i)].id, i);
    // A node that was committed and not acknowledged may stand without its evaluation; go on after it.
    acknowledged = static_cast<int>(nodes->size()) - 1;
    if (nodes->size() > evaluations->size()) {
      EvaluationRow e;
      e.node = acknowledged;
      e.kind = "screen";
      e.outcome = "failed";
      e.gate = "none";
      e.verdict_json = "{}";
      ASSERT_TRUE((*store)->add_evaluations("s", {&e, 1}).ok());
    }
  }
  EXPECT_GT(acknowledged, 80);
}

TEST(StoreFault, ThirtyProcessesShareOneFile) {
  constexpr int kProcesses = 30, kBatches = 8, kPerBatch = 4;
  const TempDir dir;
  const std::string path = dir.path() + "/search.db";
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = Store::open(path);  // all race to create it
      if (!store.ok()) {
        std::fprintf(stderr, "%s\n", store.status().to_string().c_str());
        _exit(2);
      }
      const std::string session = "s" + std::to_string(p);
      if (!(*store)->begin_session(session_row(session)).ok()) _exit(3);
      for (int b = 0; b < kBatches; ++b) {
        std::vector<NodeRow> nodes(kPerBatch);
        std::vector<EvaluationRow> evaluations(kPerBatch);
        for (int i = 0; i < kPerBatch; ++i) {
          const int id = b * kPerBatch + i;
          nodes[static_cast<size_t>(i)].id = evaluations[static_cast<size_t>(i)].node = id;
          evaluations[static_cast<size_t>(i)].kind = "screen";
          evaluations[static_cast<size_t>(i)].outcome = "screened";
          evaluations[static_cast<size_t>(i)].cost = id + 1.0;
        }
        if (const auto s = (*store)->add_nodes(session, nodes); !s.ok()) _exit(4);
        if (const auto s = (*store)->add_evaluations(session, evaluations); !s.ok()) _exit(5);
      }
      _exit(0);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
  }
  auto store = Store::open(path);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  std::set<int64_t> sequence;
  for (int p = 0; p < kProcesses; ++p) {
    const auto rows = (*store)->evaluations("s" + std::to_string(p));
    ASSERT_TRUE(rows.ok());
    EXPECT_EQ(rows->size(), static_cast<size_t>(kBatches * kPerBatch));
    for (const EvaluationRow& r : *rows) sequence.insert(r.seq);
  }
  EXPECT_EQ(sequence.size(), static_cast<size_t>(kProcesses * kBatches * kPerBatch));
}

}  // namespace
}  // namespace niche::evolve::store
