#include "evolve/store/sqlite.h"

#include <sqlite3.h>

namespace niche::evolve::store {
namespace {

using dispatch::Code;
using dispatch::Result;
using dispatch::Status;

Status status_of(int rc, sqlite3* db, const std::string& path) {
  if (rc == SQLITE_OK || rc == SQLITE_ROW || rc == SQLITE_DONE) return {};
  const std::string what = "store " + path + ": " +
                           (db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(rc)) + " (SQLite " +
                           std::to_string(rc) + ")";
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

Statement::Statement(sqlite3* db, std::string path, sqlite3_stmt* stmt)
    : db_(db), path_(std::move(path)), stmt_(stmt) {}

void Statement::check(int rc) {
  if (status_.ok()) status_ = status_of(rc, db_, path_);
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

int64_t Statement::integer(int column) const { return sqlite3_column_int64(stmt_.get(), column); }
double Statement::real(int column) const { return sqlite3_column_double(stmt_.get(), column); }
bool Statement::is_null(int column) const { return sqlite3_column_type(stmt_.get(), column) == SQLITE_NULL; }
std::string Statement::text(int column) const {
  const void* data = sqlite3_column_blob(stmt_.get(), column);
  const int bytes = sqlite3_column_bytes(stmt_.get(), column);
  return data == nullptr ? std::string()
                         : std::string(static_cast<const char*>(data), static_cast<size_t>(bytes));
}

Result<std::unique_ptr<Database>> Database::open(const std::string& path, int lock_timeout_ms) {
  sqlite3* raw = nullptr;
  const int rc = sqlite3_open_v2(path.c_str(), &raw,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_EXRESCODE, nullptr);
  std::unique_ptr<Database> db(new Database(path, raw));
  if (rc != SQLITE_OK) return status_of(rc, raw, path);
  sqlite3_busy_timeout(raw, lock_timeout_ms);
  return db;
}

Status Database::exec(const char* sql) {
  return status_of(sqlite3_exec(db_.get(), sql, nullptr, nullptr, nullptr), db_.get(), path_);
}

Result<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* stmt = nullptr;
  const int rc = sqlite3_prepare_v2(db_.get(), sql.data(), static_cast<int>(sql.size()), &stmt, nullptr);
  if (rc != SQLITE_OK) return status_of(rc, db_.get(), path_);
  return Statement(db_.get(), path_, stmt);
}

Result<int64_t> Database::scalar(std::string_view sql) {
  auto s = prepare(sql);
  if (!s.ok()) return s.status();
  if (s->step()) return s->integer(0);
  if (!s->status().ok()) return s->status();
  return dispatch::internal("store " + path_ + ": no row from " + std::string(sql));
}

}  // namespace niche::evolve::store
