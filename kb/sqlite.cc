#include "kb/sqlite.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

namespace niche::kb {
namespace {

using dispatch::Result;
using dispatch::Status;

Status status_of(int rc, sqlite3* db, const std::string& name) {
  if (rc == SQLITE_OK || rc == SQLITE_ROW || rc == SQLITE_DONE) return {};
  const std::string what = name + ": " + (db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(rc)) +
                           " (SQLite " + std::to_string(rc) + ")";
  switch (rc & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return dispatch::corrupt(what);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return dispatch::busy(what);
    case SQLITE_IOERR:
    case SQLITE_FULL:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
      return dispatch::io_error(what);
    default:
      return dispatch::internal(what);
  }
}

}  // namespace

void Statement::Finalize::operator()(sqlite3_stmt* s) const { sqlite3_finalize(s); }
void Database::Close::operator()(sqlite3* db) const { sqlite3_close(db); }

Statement::Statement(sqlite3* db, std::string name, sqlite3_stmt* stmt)
    : db_(db), name_(std::move(name)), stmt_(stmt) {}

void Statement::check(int rc) {
  if (status_.ok()) status_ = status_of(rc, db_, name_);
}
Statement& Statement::bind(int64_t v) {
  check(sqlite3_bind_int64(stmt_.get(), next_++, v));
  return *this;
}
Statement& Statement::bind(double v) {
  check(sqlite3_bind_double(stmt_.get(), next_++, v));
  return *this;
}
Statement& Statement::bind(std::string_view text) {
  check(sqlite3_bind_text64(stmt_.get(), next_++, text.data() != nullptr ? text.data() : "", text.size(),
                            SQLITE_TRANSIENT, SQLITE_UTF8));
  return *this;
}
Statement& Statement::bind_blob(std::string_view bytes) {
  check(sqlite3_bind_blob64(stmt_.get(), next_++, bytes.data() != nullptr ? bytes.data() : "", bytes.size(),
                            SQLITE_TRANSIENT));
  return *this;
}
Statement& Statement::bind_null() {
  check(sqlite3_bind_null(stmt_.get(), next_++));
  return *this;
}

bool Statement::step() {
  if (!status_.ok()) return false;
  const int rc = sqlite3_step(stmt_.get());
  check(rc);
  return rc == SQLITE_ROW;
}

Status Statement::run() {
  while (step()) {
  }
  return status_;
}

void Statement::reset() {
  sqlite3_reset(stmt_.get());
  next_ = 1;
}

int64_t Statement::integer(int column) const { return sqlite3_column_int64(stmt_.get(), column); }
double Statement::real(int column) const { return sqlite3_column_double(stmt_.get(), column); }
bool Statement::is_null(int column) const { return sqlite3_column_type(stmt_.get(), column) == SQLITE_NULL; }
std::string Statement::text(int column) const {
  const void* data = sqlite3_column_blob(stmt_.get(), column);
  const int bytes = sqlite3_column_bytes(stmt_.get(), column);
  return data == nullptr ? std::string()
                         : std::string(static_cast<const char*>(data), static_cast<size_t>(bytes));
}

Result<std::unique_ptr<Database>> Database::open(std::string_view kind, const std::string& path,
                                                 int lock_timeout_ms) {
  std::unique_ptr<Database> db(new Database(kind, path));
  sqlite3* raw = nullptr;
  const int rc = sqlite3_open_v2(path.c_str(), &raw,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_EXRESCODE, nullptr);
  db->db_.reset(raw);
  if (rc != SQLITE_OK) return status_of(rc, raw, db->name_);
  sqlite3_busy_timeout(raw, lock_timeout_ms);
  return db;
}

// ---- looking

namespace {

constexpr int kLooksMax = 5;
constexpr std::chrono::milliseconds kPatience{1000}, kPause{10};

// What tells one state of a file from another without reading it.
struct Stamp {
  bool there = false;
  uint64_t inode = 0;
  int64_t bytes = 0, changed_ns = 0;
  bool operator==(const Stamp&) const = default;
};
Stamp stamp_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return {};
  return {true, st.st_ino, st.st_size, int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec};
}

// How a file can be read without writing beside it.
enum class Way {
  kAlone,    // nobody has written to a log: all is in the file. No locks
  kShared,   // log and index are there: SQLite's own protocol among processes, its index read only
  kWithLog,  // a log whose index is missing: this process makes one in its memory. No locks
};

struct Beside {
  Stamp file, log, journal;
  bool index = false;
  static Beside of(const std::string& path) {
    return {stamp_of(path), stamp_of(path + "-wal"), stamp_of(path + "-journal"),
            stamp_of(path + "-shm").there};
  }
  Way way() const {
    if (log.bytes > 0) return index ? Way::kShared : Way::kWithLog;
    // A rollback journal is no file of niche's: SQLite says what it thinks of it.
    return journal.bytes > 0 ? Way::kShared : Way::kAlone;
  }
  bool same_contents(const Beside& o) const { return file == o.file && log == o.log && journal == o.journal; }
};

std::string uri_of(const std::string& path, Way way) {
  std::string uri = "file://";
  for (const char c : std::filesystem::absolute(path).string()) {
    if (c == '%' || c == '?' || c == '#') {
      constexpr char kHex[] = "0123456789ABCDEF";
      const auto byte = static_cast<unsigned char>(c);
      uri += {'%', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      uri += c;
    }
  }
  uri += "?mode=ro";
  if (way == Way::kAlone) uri += "&immutable=1";
  if (way == Way::kShared) uri += "&readonly_shm=1";
  if (way == Way::kWithLog) uri += "&vfs=unix-none";
  return uri;
}

Status readable(const std::string& name, const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) return dispatch::not_found(name + ": no such file");
    return dispatch::io_error(name + ": " + std::strerror(error));
  }
  if (!S_ISREG(st.st_mode)) return dispatch::invalid(name + ": not a file");
  if (st.st_size == 0) return dispatch::not_found(name + ": empty: nothing was ever written to it");
  for (const char* end : {"", "-wal", "-shm"}) {
    const std::string file = path + end;
    if (::faccessat(AT_FDCWD, file.c_str(), R_OK, AT_EACCESS) != 0 && errno != ENOENT)
      return dispatch::io_error(name + ": this user may not read " + file + ": " + std::strerror(errno));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Database>> Database::open_to_read(std::string_view kind, const std::string& path,
                                                         bool locks, const std::string& uri,
                                                         int lock_timeout_ms) {
  std::unique_ptr<Database> db(new Database(kind, path));
  sqlite3* raw = nullptr;
  const int rc = sqlite3_open_v2(uri.c_str(), &raw,
                                 SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_EXRESCODE, nullptr);
  db->db_.reset(raw);
  if (rc != SQLITE_OK) return status_of(rc, raw, db->name_);
  sqlite3_busy_timeout(raw, lock_timeout_ms);
  // The last one to close a log would move it into the file.
  sqlite3_db_config(raw, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  if (!locks) NICHE_RETURN_IF_ERROR(db->exec("PRAGMA locking_mode=EXCLUSIVE"));  // no index in a file
  NICHE_RETURN_IF_ERROR(db->exec("PRAGMA temp_store=MEMORY; BEGIN"));
  // A transaction takes its state at its first reading.
  if (auto first = db->scalar("SELECT count(*) FROM sqlite_schema"); !first.ok()) return first.status();
  return db;
}

Status Database::look_at(std::string_view kind, const std::string& path, int lock_timeout_ms,
                         const Look& look) {
  const std::string name = std::string(kind) + ' ' + path;
  const auto patient_until = std::chrono::steady_clock::now() + kPatience;
  for (int looks = 0; looks < kLooksMax;) {
    NICHE_RETURN_IF_ERROR(readable(name, path));
    const Beside before = Beside::of(path);
    Way way = before.way();
    if (way == Way::kShared && std::chrono::steady_clock::now() > patient_until) way = Way::kWithLog;
    auto db = open_to_read(kind, path, way == Way::kShared, uri_of(path, way), lock_timeout_ms);
    const bool opened = db.ok();
    const Status status = opened ? look(std::move(*db)) : db.status();
    if (way == Way::kShared) {
      const bool may_pass = status.code() == dispatch::Code::kIo || status.code() == dispatch::Code::kBusy;
      if (opened || !may_pass) return status;
      // The index has no place for a reader before a writer's second transaction; files come and go.
      std::this_thread::sleep_for(kPause);
      continue;
    }
    if (Beside::of(path).same_contents(before)) return status;
    ++looks;
  }
  return dispatch::busy(name + ": written to each of " + std::to_string(kLooksMax) +
                        " times that it was read: try again");
}

Status Database::exec(const std::string& sql) {
  return status_of(sqlite3_exec(db_.get(), sql.c_str(), nullptr, nullptr, nullptr), db_.get(), name_);
}

Result<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* stmt = nullptr;
  const int rc = sqlite3_prepare_v2(db_.get(), sql.data(), static_cast<int>(sql.size()), &stmt, nullptr);
  if (rc != SQLITE_OK) return status_of(rc, db_.get(), name_);
  return Statement(db_.get(), name_, stmt);
}

Result<int64_t> Database::scalar(std::string_view sql) {
  auto s = prepare(sql);
  if (!s.ok()) return s.status();
  if (s->step()) return s->integer(0);
  if (!s->status().ok()) return s->status();
  return dispatch::internal(name_ + ": no row from " + std::string(sql));
}

}  // namespace niche::kb
