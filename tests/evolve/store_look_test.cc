// Looking at a store without the right to write to it: it stays as it is, and what is seen is all that was acknowledged.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <map>

#include "evolve/store/store.h"
#include "tests/evolve/store_rows.h"
#include "tests/evolve/temp_dir.h"

namespace niche::evolve::store {
namespace {

using dispatch::Code;
using dispatch::Status;

constexpr uid_t kNobody = 65534;

Status add_session(Store& store, int number) {
  return store.begin_session(session_row("s" + std::to_string(number), number));
}

// What lies in a directory: names, contents, and when they were last changed.
std::map<std::string, std::string> contents(const std::string& directory) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::ifstream in(entry.path(), std::ios::binary);
    struct stat st {};
    EXPECT_EQ(::stat(entry.path().c_str(), &st), 0);
    all[entry.path().filename().string()] = std::to_string(st.st_mtim.tv_sec) + '.' +
                                            std::to_string(st.st_mtim.tv_nsec) + ' ' +
                                            std::string(std::istreambuf_iterator<char>(in), {});
  }
  return all;
}

// A process that has the store open, and does what it is told to.
class Writer {
 public:
  explicit Writer(const std::string& path) {
    EXPECT_EQ(::pipe(orders_), 0);
    EXPECT_EQ(::pipe(answers_), 0);
    child_ = ::fork();
    if (child_ == 0) {
      auto store = Store::open(path);
      bool ok = store.ok();
      for (int number = 0; ::write(answers_[1], &ok, 1) == 1 && ok;) {
        if (::read(orders_[0], &number, sizeof number) != sizeof number) ::_exit(1);
        if (number < 0) break;
        ok = add_session(**store, number).ok();
      }
      if (ok) store->reset();  // the log goes into the file
      ::_exit(ok ? 0 : 1);
    }
    answered();
  }
  ~Writer() {
    if (child_ > 0) die();
    for (const int fd : {orders_[0], orders_[1], answers_[0], answers_[1]}) ::close(fd);
  }
  void add(int number) {
    ASSERT_EQ(::write(orders_[1], &number, sizeof number), static_cast<ssize_t>(sizeof number));
    answered();
  }
  void die() { wait_for(SIGKILL); }
  void close_it() {
    const int end = -1;
    ASSERT_EQ(::write(orders_[1], &end, sizeof end), static_cast<ssize_t>(sizeof end));
    wait_for(0);
  }

 private:
  void answered() {
    bool ok = false;
    EXPECT_EQ(::read(answers_[0], &ok, 1), 1);
    EXPECT_TRUE(ok);
  }
  void wait_for(int signal) {
    if (signal != 0) ::kill(child_, signal);
    int status = 0;
    EXPECT_EQ(::waitpid(child_, &status, 0), child_);
    EXPECT_TRUE(signal != 0 || status == 0) << status;
    child_ = -1;
  }
  int orders_[2] = {}, answers_[2] = {};
  pid_t child_ = -1;
};

class StoreLook : public testing::Test {
 protected:
  // How many sessions a look sees; `look` may do more.
  dispatch::Result<size_t> seen() {
    size_t count = 0;
    const Status s = Store::look_at(path_, [&](Store& store) -> Status {
      auto rows = store.sessions(1000);
      if (!rows.ok()) return rows.status();
      count = rows->size();
      return {};
    });
    if (!s.ok()) return s;
    return count;
  }
  // What a look sees, by somebody who may write here and by somebody who may not, and that nothing changes.
  void expect_seen(size_t sessions) {
    const auto before = contents(dir_.path());
    const auto own = seen();
    ASSERT_TRUE(own.ok()) << own.status().to_string();
    EXPECT_EQ(*own, sessions);
    EXPECT_EQ(contents(dir_.path()), before);
    // Root may write anywhere: it becomes somebody else for the look.
    const bool root = ::geteuid() == 0;
    ASSERT_EQ(::chmod(dir_.path().c_str(), 0555), 0);
    ASSERT_EQ(root ? ::seteuid(kNobody) : 0, 0);
    const auto other = seen();
    ASSERT_EQ(root ? ::seteuid(0) : 0, 0);
    ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
    ASSERT_TRUE(other.ok()) << other.status().to_string();
    EXPECT_EQ(*other, sessions);
    EXPECT_EQ(contents(dir_.path()), before);
  }
  void write_old(const char* sql) {
    ASSERT_TRUE(add_session(**Store::open(path_), 1).ok());
    auto db = *Database::open("store", path_, 100);
    const Status s = db->exec(sql);
    ASSERT_TRUE(s.ok()) << s.to_string();
  }
  TempDir dir_;
  std::string path_ = dir_.path() + "/search.db";
};

TEST_F(StoreLook, SeesAClosedStore) {
  Writer w(path_);
  for (int i = 0; i < 3; ++i) w.add(i);
  w.close_it();
  ASSERT_FALSE(std::filesystem::exists(path_ + "-wal"));
  expect_seen(3);
}

TEST_F(StoreLook, SeesWhatAKilledProcessLeftInItsLog) {
  Writer w(path_);
  for (int i = 0; i < 3; ++i) w.add(i);
  w.die();
  ASSERT_GT(std::filesystem::file_size(path_ + "-wal"), 0u);
  ASSERT_TRUE(std::filesystem::exists(path_ + "-shm"));
  expect_seen(3);
  // Copied without the log's index.
  ASSERT_TRUE(std::filesystem::remove(path_ + "-shm"));
  expect_seen(3);
  // Its next process has all of it.
  EXPECT_EQ((*Store::open(path_))->sessions(10)->size(), 3u);
}

TEST_F(StoreLook, SeesWhatALiveProcessHasWritten) {
  Writer w(path_);
  expect_seen(0);
  for (int i = 0; i < 4; ++i) {
    w.add(i);
    expect_seen(static_cast<size_t>(i) + 1);
  }
}

TEST_F(StoreLook, SeesOneStateWhoeverWritesMeanwhile) {
  Writer w(path_);
  for (int i = 0; i < 3; ++i) w.add(i);
  int next = 3;
  const Status s = Store::look_at(path_, [&](Store& store) -> Status {
    EXPECT_EQ(store.sessions(10)->size(), 3u);
    w.add(next++);
    EXPECT_EQ(store.sessions(10)->size(), 3u);
    EXPECT_FALSE(store.session("s3").ok());
    return {};
  });
  ASSERT_TRUE(s.ok()) << s.to_string();
  EXPECT_EQ(next, 4);  // looked once
  expect_seen(4);
}

TEST_F(StoreLook, LooksAgainWhereSomebodyBeganToWriteMeanwhile) {
  ASSERT_TRUE(add_session(**Store::open(path_), 0).ok());
  for (const bool keeps_it_open : {true, false}) {
    std::unique_ptr<Writer> w;
    size_t count = 0;
    int looks = 0;
    const size_t before = *seen();
    const Status s = Store::look_at(path_, [&](Store& store) -> Status {
      if (++looks == 1) {
        w = std::make_unique<Writer>(path_);
        w->add(static_cast<int>(before));
        if (!keeps_it_open) w->close_it();
      }
      count = store.sessions(10)->size();
      return {};
    });
    ASSERT_TRUE(s.ok()) << s.to_string();
    EXPECT_EQ(looks, 2) << keeps_it_open;
    EXPECT_EQ(count, before + 1) << keeps_it_open;
    if (keeps_it_open) w->close_it();
  }
}

TEST_F(StoreLook, SaysSoWhereItIsWrittenToEachTime) {
  ASSERT_TRUE(add_session(**Store::open(path_), 0).ok());
  int looks = 0;
  const Status s = Store::look_at(path_, [&](Store&) -> Status {
    Writer w(path_);
    w.add(++looks);
    w.close_it();
    return {};
  });
  EXPECT_EQ(s.code(), Code::kBusy) << s.to_string();
  EXPECT_NE(s.message().find(path_), std::string::npos);
  EXPECT_EQ(looks, 5);
}

TEST_F(StoreLook, SaysWhatIsMissingAndMakesNothing) {
  auto s = seen().status();
  EXPECT_EQ(s.code(), Code::kNotFound) << s.to_string();
  EXPECT_NE(s.message().find(path_), std::string::npos);
  EXPECT_TRUE(contents(dir_.path()).empty());

  std::ofstream(path_).close();
  auto before = contents(dir_.path());
  s = seen().status();
  EXPECT_EQ(s.code(), Code::kNotFound) << s.to_string();
  EXPECT_NE(s.message().find("empty"), std::string::npos) << s.to_string();
  EXPECT_EQ(contents(dir_.path()), before);

  std::ofstream(path_) << std::string(8192, 'x');
  before = contents(dir_.path());
  s = seen().status();
  EXPECT_EQ(s.code(), Code::kCorrupt) << s.to_string();
  EXPECT_NE(s.message().find("move"), std::string::npos);
  EXPECT_EQ(contents(dir_.path()), before);

  EXPECT_EQ(Store::look_at(dir_.path(), [](Store&) { return Status(); }).code(), Code::kInvalid);
}

TEST_F(StoreLook, SaysWhichFileMayNotBeRead) {
  Writer w(path_);
  for (int i = 0; i < 2; ++i) w.add(i);
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
  for (const char* end : {"", "-wal"}) {
    ASSERT_EQ(::chmod((path_ + end).c_str(), 0), 0);
    const bool root = ::geteuid() == 0;
    ASSERT_EQ(root ? ::seteuid(kNobody) : 0, 0);
    const auto s = seen().status();
    ASSERT_EQ(root ? ::seteuid(0) : 0, 0);
    EXPECT_EQ(s.code(), Code::kIo) << s.to_string();
    EXPECT_NE(s.message().find("may not read " + path_ + end + ":"), std::string::npos) << s.to_string();
    ASSERT_EQ(::chmod((path_ + end).c_str(), 0644), 0);
  }
}

TEST_F(StoreLook, ReadsAnOlderNichesStoreAsItIs) {
  write_old("ALTER TABLE sessions DROP COLUMN process; DROP TABLE questions; PRAGMA user_version=1");
  const auto before = contents(dir_.path());
  const Status s = Store::look_at(path_, [](Store& store) -> Status {
    EXPECT_EQ(store.session("s1")->process, "");
    EXPECT_TRUE(store.questions("s1")->empty());
    return {};
  });
  EXPECT_TRUE(s.ok()) << s.to_string();
  EXPECT_EQ(contents(dir_.path()), before);
}

TEST_F(StoreLook, RefusesANewerNichesAndAForeignStore) {
  write_old("PRAGMA user_version=99");
  EXPECT_EQ(seen().status().code(), Code::kUnsupported);
  path_ = dir_.path() + "/foreign.db";
  write_old("PRAGMA application_id=7");
  EXPECT_EQ(seen().status().code(), Code::kCorrupt);
  EXPECT_NE(seen().status().message().find("not of niche"), std::string::npos);
}

TEST_F(StoreLook, TakesAPathOfAnyLetters) {
  path_ = dir_.path() + "/50%25 of #1?.db";
  ASSERT_TRUE(add_session(**Store::open(path_), 0).ok());
  expect_seen(1);
}

}  // namespace
}  // namespace niche::evolve::store
