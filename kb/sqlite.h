// Database, Statement: the one place that knows SQLite: for knowledge and skills here, for the search trees in
// evolve/store. Its result codes become Status: kCorrupt for a damaged or foreign file, kBusy when another process held
// the lock longer than the timeout, kIo for the disk. A message begins with what the file is and its path.
//
// Thread-safety: one owner thread a Database. A Statement must not outlive its Database.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dispatch/base/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace niche::kb {

class Statement {
 public:
  Statement(sqlite3* db, std::string name, sqlite3_stmt* stmt);
  // Binds the next parameter, left to right.
  Statement& bind(int64_t v);
  Statement& bind(int v) { return bind(static_cast<int64_t>(v)); }
  Statement& bind(double v);
  Statement& bind(std::string_view text);
  Statement& bind(const char* text) { return bind(std::string_view(text)); }
  Statement& bind_blob(std::string_view bytes);
  Statement& bind_null();
  // A value below zero is bound as NULL: "no parent".
  Statement& bind_id(int id) { return id < 0 ? bind_null() : bind(id); }

  // True: a row is there. False: done, or failed: see status().
  bool step();
  // Runs a statement that gives no rows.
  dispatch::Status run();
  // To bind and run it again.
  void reset();
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
  std::string name_;
  std::unique_ptr<sqlite3_stmt, Finalize> stmt_;
  int next_ = 1;
  dispatch::Status status_;
};

class Database {
 public:
  // Opens or creates the file; `kind` is what messages call it ("store"). The lock timeout holds for every later
  // statement.
  static dispatch::Result<std::unique_ptr<Database>> open(std::string_view kind, const std::string& path,
                                                          int lock_timeout_ms);

  // To look at a file, and leave it and what lies beside it as they are: nothing is created, locked against writers,
  // checkpointed or brought up to date, so that it takes no right to write. `look` sees one state of the file, however
  // many statements it runs and whoever writes meanwhile. Where nobody had the file open and somebody began to write
  // while it looked, what it saw may be mixed and it is called again, a few times at most: it must have no effect but
  // its result. Its status is given back.
  //
  // A file of which a process with the log open died is read with that log; so is one that was copied with its log and
  // without the log's index (-shm). Temporary tables may be made.
  //
  // kNotFound: no such file, or one of 0 bytes, which SQLite would take for an empty database; kInvalid: no regular
  // file; kIo: this user may not read it or its log, or the disk; kBusy: somebody wrote each time.
  using Look = std::function<dispatch::Status(std::unique_ptr<Database>)>;
  static dispatch::Status look_at(std::string_view kind, const std::string& path, int lock_timeout_ms,
                                  const Look& look);

  dispatch::Status exec(const std::string& sql);
  dispatch::Result<Statement> prepare(std::string_view sql);
  // One integer, of a PRAGMA or a query that gives exactly one row.
  dispatch::Result<int64_t> scalar(std::string_view sql);
  const std::string& path() const { return path_; }
  const std::string& name() const { return name_; }  // kind and path

 private:
  struct Close {
    void operator()(sqlite3* db) const;
  };
  Database(std::string_view kind, const std::string& path)
      : path_(path), name_(std::string(kind) + ' ' + path) {}
  static dispatch::Result<std::unique_ptr<Database>> open_to_read(std::string_view kind,
                                                                  const std::string& path, bool locks,
                                                                  const std::string& uri,
                                                                  int lock_timeout_ms);
  std::string path_, name_;
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

}  // namespace niche::kb
