// Database, Statement: the one place that knows SQLite. Its result codes become Status: kCorrupt for a
// damaged or foreign file, kBusy when another process held the lock longer than the timeout, kIo for the
// disk.
//
// Thread-safety: one owner thread a Database. A Statement must not outlive its Database.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dispatch/base/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace niche::evolve::store {

class Statement {
 public:
  Statement(sqlite3* db, std::string path, sqlite3_stmt* stmt);
  // Binds the next parameter, left to right.
  Statement& bind(int64_t v);
  Statement& bind(int v) { return bind(static_cast<int64_t>(v)); }
  Statement& bind(double v);
  Statement& bind(std::string_view text);
  Statement& bind(const char* text) { return bind(std::string_view(text)); }
  Statement& bind_blob(std::string_view bytes);
  Statement& bind_null();
  // A value below zero is bound as NULL: the store's "no parent".
  Statement& bind_id(int id) { return id < 0 ? bind_null() : bind(id); }

  // True: a row is there. False: done, or failed: see status().
  bool step();
  // Runs a statement that gives no rows.
  dispatch::Status run();
  const dispatch::Status& status() const { return status_; }

  int64_t integer(int column) const;
  double real(int column) const;
  std::string text(int column) const;  // also blobs
  bool is_null(int column) const;
  int id(int column) const { return is_null(column) ? -1 : static_cast<int>(integer(column)); }

 private:
  void check(int rc);
  struct Finalize {
    void operator()(sqlite3_stmt* s) const;
  };
  sqlite3* db_;
  std::string path_;
  std::unique_ptr<sqlite3_stmt, Finalize> stmt_;
  int next_ = 1;
  dispatch::Status status_;
};

class Database {
 public:
  // Opens or creates the file. The lock timeout holds for every later statement.
  static dispatch::Result<std::unique_ptr<Database>> open(const std::string& path, int lock_timeout_ms);

  dispatch::Status exec(const char* sql);
  dispatch::Result<Statement> prepare(std::string_view sql);
  // One integer, of a PRAGMA or a query that gives exactly one row.
  dispatch::Result<int64_t> scalar(std::string_view sql);
  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(sqlite3* db) const;
  };
  Database(std::string path, sqlite3* db) : path_(std::move(path)), db_(db) {}
  std::string path_;
  std::unique_ptr<sqlite3, Close> db_;
};

// BEGIN IMMEDIATE ... COMMIT; rolled back unless commit() was called and succeeded.
class Transaction {
 public:
  explicit Transaction(Database& db) : db_(db), status_(db.exec("BEGIN IMMEDIATE")), open_(status_.ok()) {}
  ~Transaction() {
    if (open_) (void)db_.exec("ROLLBACK");
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  const dispatch::Status& status() const { return status_; }
  dispatch::Status commit() {
    dispatch::Status s = db_.exec("COMMIT");
    open_ = !s.ok();
    return s;
  }

 private:
  Database& db_;
  dispatch::Status status_;
  bool open_;
};

}  // namespace niche::evolve::store
