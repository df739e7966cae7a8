// Schema, opening and writing. Reading stands in store_queries.cc.
#include "evolve/store/store.h"

#include <sys/stat.h>

#include <algorithm>

#include "evolve/store/process_mark.h"
#include "kernels_cache/sha256.h"

namespace niche::evolve::store {
namespace {

using dispatch::Code;
using dispatch::Result;
using dispatch::Status;

constexpr const char* kKind = "store";          // in messages
constexpr int64_t kApplicationId = 0x6e696368;  // "nich"

// Version 1. A change adds a new list of statements, run on files of the version before; none is ever edited.
constexpr const char* kSchema1 = R"sql(
CREATE TABLE sessions(
  id TEXT PRIMARY KEY, definition TEXT NOT NULL, definition_json TEXT NOT NULL, op TEXT NOT NULL, dtype TEXT NOT NULL,
  arch TEXT NOT NULL, problems_json TEXT NOT NULL, request_json TEXT NOT NULL, state TEXT NOT NULL,
  reason TEXT NOT NULL, started_unix_ns INTEGER NOT NULL, ended_unix_ns INTEGER NOT NULL);
CREATE INDEX sessions_by_kind ON sessions(op, dtype, arch, started_unix_ns);
CREATE INDEX sessions_by_definition ON sessions(definition, started_unix_ns);
CREATE TABLE nodes(
  session TEXT NOT NULL REFERENCES sessions(id), id INTEGER NOT NULL, parent INTEGER, second_parent INTEGER,
  batch INTEGER NOT NULL, made_by TEXT NOT NULL, family TEXT NOT NULL, point_json TEXT NOT NULL,
  source_hash TEXT NOT NULL, outcome TEXT NOT NULL, cost REAL NOT NULL, PRIMARY KEY(session, id)) WITHOUT ROWID;
CREATE INDEX nodes_by_parent ON nodes(session, parent);
CREATE INDEX nodes_by_source ON nodes(source_hash);
CREATE TABLE evaluations(
  seq INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, node INTEGER NOT NULL, kind TEXT NOT NULL,
  outcome TEXT NOT NULL, gate TEXT NOT NULL, reason TEXT NOT NULL, cost REAL NOT NULL, verdict_json TEXT NOT NULL,
  artefact_hash TEXT NOT NULL, FOREIGN KEY(session, node) REFERENCES nodes(session, id));
CREATE INDEX evaluations_by_session ON evaluations(session, node);
CREATE TABLE blobs(hash TEXT PRIMARY KEY, bytes BLOB NOT NULL);
)sql";
constexpr const char* kSchema2 = R"sql(
CREATE TABLE questions(
  session TEXT NOT NULL REFERENCES sessions(id), number INTEGER NOT NULL, outcome TEXT NOT NULL, usd REAL NOT NULL,
  tokens INTEGER NOT NULL, PRIMARY KEY(session, number)) WITHOUT ROWID;
)sql";

constexpr const char* kSchema3 = "ALTER TABLE sessions ADD COLUMN process TEXT NOT NULL DEFAULT ''";

// What a reader of an older file sees in its place.
constexpr const char* kRead1 =
    "CREATE TEMP TABLE questions(session TEXT, number INTEGER, outcome TEXT, usd REAL, tokens INTEGER)";
constexpr const char* kRead2 = "CREATE TEMP VIEW sessions AS SELECT *, '' AS process FROM main.sessions";

Status with_advice(const Status& s, const std::string& path) {
  if (s.code() != Code::kCorrupt) return s;
  return dispatch::corrupt(s.message() + "; move " + path +
                           " (with -wal and -shm) away, or restore it: only search "
                           "history is in it, no kernels");
}

int64_t file_bytes(const std::string& path) {
  struct stat st {};
  return stat(path.c_str(), &st) == 0 ? static_cast<int64_t>(st.st_size) : 0;
}

}  // namespace

Result<std::unique_ptr<Store>> Store::open(const std::string& path, const StoreOptions& options) {
  auto db = Database::open(kKind, path, options.lock_timeout_ms);
  if (!db.ok()) return with_advice(db.status(), path);
  std::unique_ptr<Store> store(new Store(std::move(*db)));
  if (Status s = store->prepare_file(options); !s.ok()) return with_advice(s, path);
  return store;
}

Status Store::look_at(const std::string& path, const std::function<Status(Store&)>& look,
                      const StoreOptions& options) {
  return with_advice(Database::look_at(kKind, path, options.lock_timeout_ms,
                                       [&](std::unique_ptr<Database> db) -> Status {
                                         Store store(std::move(db));
                                         NICHE_RETURN_IF_ERROR(store.prepare_to_read());
                                         return look(store);
                                       }),
                     path);
}

Result<Store::Opened> Store::open_or_fresh(const std::string& path, const StoreOptions& options) {
  Opened opened;
  std::string candidate = path;
  for (int n = 2;; ++n) {
    auto store = open(candidate, options);
    if (store.ok()) {
      opened.store = std::move(*store);
      return opened;
    }
    const Code code = store.status().code();
    if ((code != Code::kCorrupt && code != Code::kUnsupported) || n > 9) return store.status();
    if (opened.damage.ok()) opened.damage = store.status();
    candidate = path + "." + std::to_string(n);
  }
}

Status Store::known_file(int64_t application, int64_t version) const {
  if (application != kApplicationId)
    return dispatch::corrupt("store " + path() + ": an SQLite file, but not of niche (application id " +
                             std::to_string(application) + ")");
  if (version > kSchemaVersion)
    return dispatch::unsupported("store " + path() + ": schema " + std::to_string(version) +
                                 ", this niche knows " + std::to_string(kSchemaVersion));
  return {};
}

Status Store::prepare_to_read() {
  auto version = db_->scalar("PRAGMA user_version");
  auto application = db_->scalar("PRAGMA application_id");
  auto tables = db_->scalar("SELECT count(*) FROM sqlite_schema");
  for (const auto* r : {&version, &application, &tables})
    if (!r->ok()) return r->status();
  if (*version == 0 && *tables == 0)
    return dispatch::not_found("store " + path() + ": no session was ever recorded in it");
  NICHE_RETURN_IF_ERROR(known_file(*application, *version));
  if (*version < 2) NICHE_RETURN_IF_ERROR(db_->exec(kRead1));
  if (*version < 3) NICHE_RETURN_IF_ERROR(db_->exec(kRead2));
  return {};
}

Status Store::prepare_file(const StoreOptions& options) {
  // Switching to WAL needs the whole file for a moment and does not wait: a few tries.
  Status wal;
  for (int attempt = 0; attempt < 50; ++attempt) {
    wal = db_->exec("PRAGMA journal_mode=WAL");
    if (wal.code() != Code::kBusy) break;
    (void)db_->exec("BEGIN IMMEDIATE; ROLLBACK");  // waits for whoever is at it, up to the timeout
  }
  NICHE_RETURN_IF_ERROR(wal);
  NICHE_RETURN_IF_ERROR(db_->exec("PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON"));
  Transaction t(*db_);
  NICHE_RETURN_IF_ERROR(t.status());
  auto version = db_->scalar("PRAGMA user_version");
  auto application = db_->scalar("PRAGMA application_id");
  auto tables = db_->scalar("SELECT count(*) FROM sqlite_schema");
  for (const auto* r : {&version, &application, &tables})
    if (!r->ok()) return r->status();
  if (*version == 0 && *tables == 0) {
    NICHE_RETURN_IF_ERROR(db_->exec(kSchema1));
    NICHE_RETURN_IF_ERROR(db_->exec(kSchema2));
    NICHE_RETURN_IF_ERROR(db_->exec(kSchema3));
    const std::string mark = "PRAGMA user_version=" + std::to_string(kSchemaVersion) +
                             "; PRAGMA application_id=" + std::to_string(kApplicationId);
    NICHE_RETURN_IF_ERROR(db_->exec(mark));
    return t.commit();
  }
  NICHE_RETURN_IF_ERROR(known_file(*application, *version));
  if (*version < 2) {
    NICHE_RETURN_IF_ERROR(db_->exec(kSchema2));
    NICHE_RETURN_IF_ERROR(db_->exec("PRAGMA user_version=2"));
  }
  if (*version < 3) {
    NICHE_RETURN_IF_ERROR(db_->exec(kSchema3));
    NICHE_RETURN_IF_ERROR(db_->exec("PRAGMA user_version=3"));
  }
  NICHE_RETURN_IF_ERROR(t.commit());
  if (file_bytes(path()) > options.check_bytes_max) return {};
  auto check = db_->prepare("PRAGMA quick_check(1)");
  if (!check.ok()) return check.status();
  if (!check->step()) return check->status();
  if (const std::string found = check->text(0); found != "ok")
    return dispatch::corrupt("store " + path() + ": " + found);
  return {};
}

Status Store::begin_session(const SessionRow& r) {
  Transaction t(*db_);
  NICHE_RETURN_IF_ERROR(t.status());
  auto known = db_->prepare("SELECT 1 FROM sessions WHERE id=?");
  if (!known.ok()) return known.status();
  if (known->bind(r.id).step())
    return dispatch::busy("store " + path() + ": session '" + r.id + "' exists already");
  NICHE_RETURN_IF_ERROR(known->status());
  auto s = db_->prepare("INSERT INTO sessions VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)");
  if (!s.ok()) return s.status();
  s->bind(r.id).bind(r.definition).bind(r.definition_json).bind(r.op).bind(r.dtype).bind(r.arch);
  s->bind(r.problems_json).bind(r.request_json).bind(r.state).bind(r.reason);
  NICHE_RETURN_IF_ERROR(s->bind(r.started_unix_ns).bind(r.ended_unix_ns).bind(own_process_mark()).run());
  return t.commit();
}

Status Store::set_session_state(const std::string& id, const std::string& state, const std::string& reason,
                                int64_t ended_unix_ns) {
  auto s = db_->prepare("UPDATE sessions SET state=?, reason=?, ended_unix_ns=?, process=? WHERE id=?");
  if (!s.ok()) return s.status();
  return s->bind(state).bind(reason).bind(ended_unix_ns).bind(own_process_mark()).bind(id).run();
}

Status Store::add_nodes(const std::string& session, std::span<const NodeRow> nodes) {
  Transaction t(*db_);
  NICHE_RETURN_IF_ERROR(t.status());
  for (const NodeRow& n : nodes) {
    auto s = db_->prepare("INSERT INTO nodes VALUES(?,?,?,?,?,?,?,?,?,?,?)");
    if (!s.ok()) return s.status();
    s->bind(session).bind(n.id).bind_id(n.parent).bind_id(n.second_parent).bind(n.batch).bind(n.made_by);
    s->bind(n.family).bind(n.point_json).bind(n.source_hash).bind(n.outcome).bind(n.cost);
    NICHE_RETURN_IF_ERROR(s->run());
  }
  return t.commit();
}

Status Store::add_evaluations(const std::string& session, std::span<const EvaluationRow> rows) {
  Transaction t(*db_);
  NICHE_RETURN_IF_ERROR(t.status());
  for (const EvaluationRow& r : rows) {
    auto s = db_->prepare(
        "INSERT INTO evaluations(session,node,kind,outcome,gate,reason,cost,verdict_json,artefact_hash) "
        "VALUES(?,?,?,?,?,?,?,?,?)");
    if (!s.ok()) return s.status();
    s->bind(session).bind(r.node).bind(r.kind).bind(r.outcome).bind(r.gate).bind(r.reason).bind(r.cost);
    NICHE_RETURN_IF_ERROR(s->bind(r.verdict_json).bind(r.artefact_hash).run());
    if (r.outcome.empty()) continue;  // tells more about a candidate, and changes no result
    auto u = db_->prepare("UPDATE nodes SET outcome=?, cost=? WHERE session=? AND id=?");
    if (!u.ok()) return u.status();
    NICHE_RETURN_IF_ERROR(u->bind(r.outcome).bind(r.cost).bind(session).bind(r.node).run());
  }
  return t.commit();
}

Status Store::add_question(const std::string& session, const QuestionRow& r) {
  auto s = db_->prepare("INSERT OR REPLACE INTO questions VALUES(?,?,?,?,?)");
  if (!s.ok()) return s.status();
  return s->bind(session).bind(r.number).bind(r.outcome).bind(r.usd).bind(r.tokens).run();
}

Result<std::string> Store::put_blob(std::string_view bytes) {
  std::string hash = kernels_cache::to_hex(kernels_cache::sha256(bytes));
  auto s = db_->prepare("INSERT OR IGNORE INTO blobs VALUES(?,?)");
  if (!s.ok()) return s.status();
  NICHE_RETURN_IF_ERROR(s->bind(hash).bind_blob(bytes).run());
  return hash;
}

Status Store::prune(int sessions_max, int64_t bytes_max) {
  Transaction t(*db_);
  NICHE_RETURN_IF_ERROR(t.status());
  auto sessions = db_->scalar("SELECT count(*) FROM sessions");
  if (!sessions.ok()) return sessions.status();
  for (int64_t keep = std::min<int64_t>(*sessions, sessions_max);; keep /= 2) {
    keep = std::max<int64_t>(keep, 1);
    const std::string old = "(SELECT id FROM sessions ORDER BY started_unix_ns DESC, id LIMIT -1 OFFSET " +
                            std::to_string(keep) + ")";
    const std::string sql =
        "DELETE FROM evaluations WHERE session IN " + old + "; DELETE FROM nodes WHERE session IN " + old +
        "; DELETE FROM questions WHERE session IN " + old + "; DELETE FROM sessions WHERE id IN " + old +
        "; DELETE FROM blobs WHERE hash NOT IN (SELECT source_hash FROM nodes) AND hash NOT IN "
        "(SELECT json_extract(point_json, '$.exchange') FROM nodes WHERE family='model' AND "
        "json_extract(point_json, '$.exchange') IS NOT NULL)";
    if (keep < *sessions) NICHE_RETURN_IF_ERROR(db_->exec(sql));
    // Freed pages are used again before the file grows: what counts is what is in use.
    auto pages = db_->scalar("PRAGMA page_count");
    auto free_pages = db_->scalar("PRAGMA freelist_count");
    auto page_bytes = db_->scalar("PRAGMA page_size");
    for (const auto* r : {&pages, &free_pages, &page_bytes})
      if (!r->ok()) return r->status();
    if (keep == 1 || (*pages - *free_pages) * *page_bytes <= bytes_max) return t.commit();
  }
}

Result<std::string> Store::blob(const std::string& hash) {
  auto s = db_->prepare("SELECT bytes FROM blobs WHERE hash=?");
  if (!s.ok()) return s.status();
  if (!s->bind(hash).step()) {
    if (!s->status().ok()) return s->status();
    return dispatch::not_found("store " + path() + ": no blob " + hash);
  }
  std::string bytes = s->text(0);
  if (kernels_cache::to_hex(kernels_cache::sha256(std::string_view(bytes))) != hash)
    return dispatch::corrupt("store " + path() + ": blob " + hash + " has other contents than its name says");
  return bytes;
}

}  // namespace niche::evolve::store
