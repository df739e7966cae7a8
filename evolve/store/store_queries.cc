#include "evolve/store/store.h"

namespace niche::evolve::store {
namespace {

using dispatch::Result;
using dispatch::Status;

constexpr std::string_view kNodeColumns =
    "n.id, n.parent, n.second_parent, n.batch, n.made_by, n.family, n.point_json, n.source_hash, n.outcome, "
    "n.cost";
// Verified candidates before screened ones, then by time.
constexpr std::string_view kBestFirst = "CASE outcome WHEN 'faster' THEN 0 ELSE 1 END, cost, id";
constexpr std::string_view kUsable = "outcome IN ('faster','ambiguous','not_faster','screened')";

NodeRow read_node(const Statement& s) {
  NodeRow n;
  n.id = static_cast<int>(s.integer(0));
  n.parent = s.id(1);
  n.second_parent = s.id(2);
  n.batch = static_cast<int>(s.integer(3));
  n.made_by = s.text(4);
  n.family = s.text(5);
  n.point_json = s.text(6);
  n.source_hash = s.text(7);
  n.outcome = s.text(8);
  n.cost = s.real(9);
  return n;
}

PastBest read_past(const Statement& s) {
  return {s.text(0), s.text(1), s.text(2), s.text(3), s.text(4), s.text(5), s.real(6), s.text(7)};
}

}  // namespace

Result<std::vector<SessionRow>> Store::query_sessions(std::string_view where, std::string_view text,
                                                      int limit) {
  auto s = db_->prepare(
      "SELECT id, definition, definition_json, op, dtype, arch, problems_json, request_json, state, reason, "
      "started_unix_ns, ended_unix_ns, "
      "(SELECT count(*) FROM evaluations e WHERE e.session=sessions.id AND e.kind NOT IN "
      "('duplicate','profile')), "
      "(SELECT min(cost) FROM nodes n WHERE n.session=sessions.id AND n.cost>0), process, "
      "(SELECT min(cost) FROM nodes n WHERE n.session=sessions.id AND n.cost>0 AND n.outcome='faster') "
      "FROM sessions WHERE " +
      std::string(where) + " ORDER BY started_unix_ns DESC, id LIMIT ?2");
  if (!s.ok()) return s.status();
  s->bind(text).bind(limit);
  std::vector<SessionRow> rows;
  while (s->step()) {
    SessionRow r;
    std::string* texts[] = {&r.id,   &r.definition,    &r.definition_json, &r.op,    &r.dtype,
                            &r.arch, &r.problems_json, &r.request_json,    &r.state, &r.reason};
    for (int i = 0; i < 10; ++i) *texts[i] = s->text(i);
    r.started_unix_ns = s->integer(10);
    r.ended_unix_ns = s->integer(11);
    r.evaluations = static_cast<int>(s->integer(12));
    r.best_cost = s->is_null(13) ? 0 : s->real(13);
    r.process = s->text(14);
    r.confirmed_cost = s->is_null(15) ? 0 : s->real(15);
    rows.push_back(std::move(r));
  }
  if (!s->status().ok()) return s->status();
  return rows;
}

Result<SessionRow> Store::session(const std::string& id) {
  auto rows = query_sessions("id=?1", id, 1);
  if (!rows.ok()) return rows.status();
  if (rows->empty()) return dispatch::not_found("store " + path() + ": no session '" + id + "'");
  return rows->front();
}

Result<std::vector<SessionRow>> Store::sessions(int limit) { return query_sessions("?1=?1", "", limit); }

Result<SessionRow> Store::unfinished(const std::string& definition) {
  auto rows = query_sessions("definition=?1 AND state IN ('running','stopped')", definition, 1);
  if (!rows.ok()) return rows.status();
  if (rows->empty())
    return dispatch::not_found("store " + path() + ": no unfinished session of " + definition);
  return rows->front();
}

Result<SessionRow> Store::newest(const std::string& definition) {
  auto rows = query_sessions("definition=?1", definition, 1);
  if (!rows.ok()) return rows.status();
  if (rows->empty()) return dispatch::not_found("store " + path() + ": no session of " + definition);
  return rows->front();
}

Result<std::vector<NodeRow>> Store::query_nodes(std::string_view sql, const std::string& session, int node) {
  auto s = db_->prepare(sql);
  if (!s.ok()) return s.status();
  s->bind(session).bind(node);
  std::vector<NodeRow> rows;
  while (s->step()) rows.push_back(read_node(*s));
  if (!s->status().ok()) return s->status();
  return rows;
}

Result<std::vector<NodeRow>> Store::nodes(const std::string& session) {
  return query_nodes(
      "SELECT " + std::string(kNodeColumns) + " FROM nodes n WHERE n.session=?1 AND ?2=?2 ORDER BY n.id",
      session, 0);
}

Result<std::vector<QuestionRow>> Store::questions(const std::string& session) {
  auto s = db_->prepare("SELECT number, outcome, usd, tokens FROM questions WHERE session=? ORDER BY number");
  if (!s.ok()) return s.status();
  s->bind(session);
  std::vector<QuestionRow> rows;
  while (s->step()) rows.push_back({static_cast<int>(s->integer(0)), s->text(1), s->real(2), s->integer(3)});
  if (!s->status().ok()) return s->status();
  return rows;
}

Result<std::vector<NodeRow>> Store::ancestors(const std::string& session, int node) {
  return query_nodes(
      "WITH RECURSIVE up(id, depth) AS ("
      "  SELECT ?2, 0 UNION"
      "  SELECT p.id, up.depth+1 FROM up JOIN nodes c ON c.session=?1 AND c.id=up.id"
      "  JOIN nodes p ON p.session=?1 AND p.id IN (c.parent, c.second_parent)) "
      "SELECT " +
          std::string(kNodeColumns) +
          " FROM nodes n JOIN (SELECT id, min(depth) AS depth FROM up WHERE depth>0 GROUP BY id) u ON "
          "n.id=u.id "
          "WHERE n.session=?1 ORDER BY u.depth, n.id",
      session, node);
}

Result<std::vector<NodeRow>> Store::descendants(const std::string& session, int node) {
  return query_nodes(
      "WITH RECURSIVE down(id) AS (SELECT ?2 UNION SELECT c.id FROM down JOIN nodes c "
      "ON c.session=?1 AND (c.parent=down.id OR c.second_parent=down.id)) "
      "SELECT " +
          std::string(kNodeColumns) +
          " FROM nodes n JOIN down ON n.id=down.id WHERE n.session=?1 AND n.id<>?2 ORDER BY n.id",
      session, node);
}

Result<std::vector<NodeRow>> Store::siblings(const std::string& session, int node) {
  return query_nodes(
      "SELECT " + std::string(kNodeColumns) +
          " FROM nodes n JOIN nodes me ON me.session=?1 AND me.id=?2 AND n.parent IS me.parent "
          "WHERE n.session=?1 AND n.id<>?2 ORDER BY n.id",
      session, node);
}

Result<PastBest> Store::global_best(const std::string& definition) {
  auto s = db_->prepare(
      "SELECT session, definition_json, problems_json, family, point_json, outcome, cost, source_hash FROM "
      "nodes "
      "JOIN sessions ON sessions.id=nodes.session WHERE definition=? AND " +
      std::string(kUsable) +
      " ORDER BY CASE outcome WHEN 'faster' THEN 0 ELSE 1 END, cost, nodes.id LIMIT 1");
  if (!s.ok()) return s.status();
  if (s->bind(definition).step()) return read_past(*s);
  if (!s->status().ok()) return s->status();
  return dispatch::not_found("store " + path() + ": no valid candidate of " + definition);
}

Result<std::vector<PastBest>> Store::past_bests(const std::string& op, const std::string& dtype,
                                                const std::string& arch, int per_session) {
  auto s = db_->prepare(
      "WITH past AS (SELECT id AS session, definition_json, problems_json, started_unix_ns FROM sessions "
      "  WHERE op=? AND dtype=? AND arch=? ORDER BY started_unix_ns DESC LIMIT 256), "
      "ranked AS (SELECT n.*, row_number() OVER (PARTITION BY n.session ORDER BY " +
      std::string(kBestFirst) + ") AS place FROM nodes n JOIN past ON past.session=n.session WHERE " +
      std::string(kUsable) +
      ") SELECT past.session, definition_json, problems_json, family, point_json, outcome, cost, source_hash "
      "FROM ranked JOIN past ON past.session=ranked.session WHERE place<=? ORDER BY started_unix_ns DESC, "
      "place");
  if (!s.ok()) return s.status();
  s->bind(op).bind(dtype).bind(arch).bind(per_session);
  std::vector<PastBest> rows;
  while (s->step()) rows.push_back(read_past(*s));
  if (!s->status().ok()) return s->status();
  return rows;
}

Result<std::vector<EvaluationRow>> Store::evaluations(const std::string& session) {
  auto s = db_->prepare(
      "SELECT seq, node, kind, outcome, gate, reason, cost, verdict_json, artefact_hash FROM evaluations "
      "WHERE session=? ORDER BY seq");
  if (!s.ok()) return s.status();
  s->bind(session);
  std::vector<EvaluationRow> rows;
  while (s->step())
    rows.push_back({s->integer(0), static_cast<int>(s->integer(1)), s->text(2), s->text(3), s->text(4),
                    s->text(5), s->real(6), s->text(7), s->text(8)});
  if (!s->status().ok()) return s->status();
  return rows;
}

}  // namespace niche::evolve::store
