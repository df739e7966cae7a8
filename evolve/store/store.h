// Store: the search trees of all sessions, in one SQLite file (WAL) that tens of processes share.
//
// Every call that writes is one transaction: what it acknowledged survives kill -9 of this process at any
// later moment (synchronous=NORMAL: a power cut may take the last few transactions, never the file's
// consistency). Sources are kept once, by SHA-256. Bounds: prune() keeps the newest sessions; a write waits
// at most lock_timeout_ms for others.
//
// Errors: kCorrupt: the file is damaged, or no database (the message names it and says what to do);
// kUnsupported: a newer niche wrote it; kBusy: locked for too long; kIo: the disk; kNotFound: no such
// session, node or blob. Thread-safety: one owner thread; open one Store a thread. Cost: a write takes 50-100
// µs, reads are indexed.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"
#include "evolve/store/rows.h"
#include "kb/sqlite.h"

namespace niche::evolve::store {

using kb::Database;
using kb::Statement;
using kb::Transaction;

inline constexpr int kSchemaVersion = 3;

struct StoreOptions {
  int lock_timeout_ms = 10'000;
  int64_t check_bytes_max = int64_t{256} << 20;  // larger files are not checked page by page when opened
};

class Store {
 public:
  static dispatch::Result<std::unique_ptr<Store>> open(const std::string& path,
                                                       const StoreOptions& options = {});

  // To look at a store without the right to write to it: the file and what lies beside it stay as they are, and `look`
  // sees one state of it (Database::look_at says how, and why `look` may be called again). Stores of older niches are
  // read as they are. kNotFound: there is none, or nothing was ever written to it.
  static dispatch::Status look_at(const std::string& path,
                                  const std::function<dispatch::Status(Store&)>& look,
                                  const StoreOptions& options = {});

  // As open(), but a damaged file (or one of a newer niche) does not stop the session: it is left as it is,
  // and
  // "<path>.2", "<path>.3", ... up to ".9" is used, the same one by every process. `damage` says what was
  // wrong with the file asked for; OK when nothing was.
  struct Opened {
    std::unique_ptr<Store> store;
    dispatch::Status damage;
  };
  static dispatch::Result<Opened> open_or_fresh(const std::string& path, const StoreOptions& options = {});

  // ---- writing
  dispatch::Status begin_session(const SessionRow& row);  // kBusy: the id is taken
  // "running" (by this process), "stopped" (it may be resumed) or "done".
  dispatch::Status set_session_state(const std::string& id, const std::string& state,
                                     const std::string& reason, int64_t ended_unix_ns);
  // One proposed batch. All or nothing.
  dispatch::Status add_nodes(const std::string& session, std::span<const NodeRow> nodes);
  // The results of one screen, or of one judge. Sets the nodes' outcome and cost. All or nothing.
  dispatch::Status add_evaluations(const std::string& session, std::span<const EvaluationRow> rows);
  dispatch::Status add_question(const std::string& session, const QuestionRow& row);
  // Keeps bytes by their SHA-256, which it gives back in hex.
  dispatch::Result<std::string> put_blob(std::string_view bytes);
  // Forgets all but the newest `sessions_max` sessions, and more of the oldest while the rest takes more than
  // `bytes_max`; then blobs that nothing names any more. The newest session always stays.
  dispatch::Status prune(int sessions_max, int64_t bytes_max);

  // ---- reading
  dispatch::Result<SessionRow> session(const std::string& id);
  dispatch::Result<std::vector<SessionRow>> sessions(int limit);  // newest first
  // The newest session of this Definition that may be resumed (killed, or stopped); kNotFound: none.
  dispatch::Result<SessionRow> unfinished(const std::string& definition);
  // The newest session of this Definition, whatever became of it; kNotFound: none.
  dispatch::Result<SessionRow> newest(const std::string& definition);
  dispatch::Result<std::vector<NodeRow>> nodes(const std::string& session);
  dispatch::Result<std::vector<EvaluationRow>> evaluations(const std::string& session);  // in order
  dispatch::Result<std::vector<QuestionRow>> questions(const std::string& session);      // in order
  // From the node's parents up to the drafts, nearest first; both parents of a crossing.
  dispatch::Result<std::vector<NodeRow>> ancestors(const std::string& session, int node);
  // Other children of the node's parent (other drafts, for a draft).
  dispatch::Result<std::vector<NodeRow>> siblings(const std::string& session, int node);
  dispatch::Result<std::vector<NodeRow>> descendants(const std::string& session, int node);
  // The best node of all sessions of a Definition, verified ones before others; kNotFound: none is valid.
  dispatch::Result<PastBest> global_best(const std::string& definition);
  // The best nodes of every past session of this operator, type and architecture, at most `per_session` each,
  // sessions newest first (at most 256 sessions).
  dispatch::Result<std::vector<PastBest>> past_bests(const std::string& op, const std::string& dtype,
                                                     const std::string& arch, int per_session);
  dispatch::Result<std::string> blob(const std::string& sha256_hex);  // kCorrupt: bytes and name differ

  const std::string& path() const { return db_->path(); }

 private:
  explicit Store(std::unique_ptr<Database> db) : db_(std::move(db)) {}
  dispatch::Status prepare_file(const StoreOptions& options);
  dispatch::Status prepare_to_read();
  // kCorrupt: another program's; kUnsupported: a newer niche's.
  dispatch::Status known_file(int64_t application, int64_t version) const;
  dispatch::Result<std::vector<NodeRow>> query_nodes(std::string_view sql, const std::string& session,
                                                     int node);
  dispatch::Result<std::vector<SessionRow>> query_sessions(std::string_view where, std::string_view text,
                                                           int limit);

  std::unique_ptr<Database> db_;
};

}  // namespace niche::evolve::store
