#include "evolve/report/session_tree.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

#include "evolve/report/json_text.h"
#include "evolve/store/process_mark.h"

namespace niche::evolve::report {
namespace {

using dispatch::Result;
using json = nlohmann::ordered_json;
using store::EvaluationRow;
using store::NodeRow;
using store::SessionRow;

constexpr int kSessionsMax = 10'000;

json object(const std::string& text) {
  json j = parsed(text);
  return j.is_object() ? j : json::object();
}

std::string time_text(int64_t unix_ns) {
  const std::time_t t = unix_ns / 1'000'000'000;
  std::tm utc{};
  gmtime_r(&t, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &utc);
  return text;
}

std::string speedup(double cost) {
  if (cost <= 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.3fx", 1 / cost);
  return text;
}

std::string words(const json& j) {
  std::string out;
  for (const auto& [k, v] : j.items()) out += (out.empty() ? "" : " ") + k + '=' + v.dump();
  return out;
}

bool model(const NodeRow& n) { return n.family == "model"; }
bool judged(const NodeRow& n) {
  return n.outcome == "faster" || n.outcome == "not_faster" || n.outcome == "ambiguous";
}

}  // namespace

std::string node_label(const NodeRow& n) {
  const json j = object(n.point_json);
  return n.family + ' ' + (model(n) ? string_at(j, "name", "?") : words(j));
}

Result<SessionTree> SessionTree::load(store::Store& store, const std::string& id) {
  auto sessions = store.sessions(kSessionsMax);
  if (!sessions.ok()) return sessions.status();
  const SessionRow* chosen = nullptr;
  int matches = 0;
  for (const SessionRow& s : *sessions) {
    if (s.id == id || (id == "last" && chosen == nullptr)) {
      chosen = &s;
      matches = 1;
      break;
    }
    if (!id.empty() && s.id.starts_with(id)) chosen = &s, ++matches;
  }
  if (matches != 1)
    return dispatch::not_found(
        "store " + store.path() + ": " +
        (matches == 0 ? "no session '" : std::to_string(matches) + " sessions begin with '") + id +
        "'; `niche sessions` lists them");
  SessionTree t;
  t.session = *chosen;
  auto nodes = store.nodes(chosen->id);
  if (!nodes.ok()) return nodes.status();
  auto evaluations = store.evaluations(chosen->id);
  if (!evaluations.ok()) return evaluations.status();
  t.nodes = std::move(*nodes);
  t.evaluations = std::move(*evaluations);
  for (const EvaluationRow& e : t.evaluations) {
    const json verdict = object(e.verdict_json);
    if (!verdict.contains("digest")) continue;
    if (auto digest = digest_from_json(verdict["digest"].dump()); digest.ok())
      t.digests[e.node] = std::move(*digest);
  }
  for (const NodeRow& n : t.nodes) {
    // Screened template points keep no text; that is not an error.
    if (auto text = store.blob(n.source_hash); text.ok()) t.texts[n.id] = std::move(*text);
    if (!model(n)) continue;
    const std::string hash = string_at(object(n.point_json), "exchange");
    if (hash.empty() || t.exchanges.contains(hash)) continue;
    if (auto text = store.blob(hash); text.ok()) t.exchanges[hash] = std::move(*text);
  }
  return t;
}

const NodeRow* SessionTree::find(int id) const {
  const auto at =
      std::lower_bound(nodes.begin(), nodes.end(), id, [](const NodeRow& n, int v) { return n.id < v; });
  return at != nodes.end() && at->id == id ? &*at : nullptr;
}

int SessionTree::best() const {
  const NodeRow* best = nullptr;
  for (const NodeRow& n : nodes) {
    if (n.cost <= 0) continue;
    const bool faster = n.outcome == "faster", other = best != nullptr && best->outcome == "faster";
    if (best == nullptr || (faster && !other) || (faster == other && n.cost < best->cost)) best = &n;
  }
  return best == nullptr ? -1 : best->id;
}

std::vector<double> SessionTree::curve() const {
  std::vector<double> out;
  double best = 0;
  for (const EvaluationRow& e : evaluations) {
    if (e.kind != "screen") continue;
    if (e.cost > 0 && (best == 0 || e.cost < best)) best = e.cost;
    out.push_back(best);
  }
  return out;
}

std::map<std::string, int> SessionTree::refused() const {
  std::map<std::string, int> out;
  for (const EvaluationRow& e : evaluations)
    if (e.gate != "none") ++out[e.gate];
  return out;
}

std::string SessionTree::reason(int node) const {
  for (auto e = evaluations.rbegin(); e != evaluations.rend(); ++e)
    if (e->node == node && e->kind != "profile") return e->gate == "none" ? "" : e->gate + ": " + e->reason;
  return {};
}

std::string SessionTree::change(const NodeRow& n) const {
  const NodeRow* parent = find(n.parent);
  if (parent == nullptr || model(n) || parent->family != n.family) return node_label(n);
  const json mine = object(n.point_json), theirs = object(parent->point_json);
  std::string out;
  for (const auto& [k, v] : mine.items())
    if (!theirs.contains(k) || theirs[k] != v)
      out +=
          (out.empty() ? "" : " ") + k + '=' + (theirs.contains(k) ? theirs[k].dump() + "->" : "") + v.dump();
  return out.empty() ? node_label(n) : out;
}

std::string shown_state(const SessionRow& session) {
  if (session.state != "running") return session.state;
  switch (store::liveness(session.process)) {
    case store::Liveness::kRuns:
      return "running";
    case store::Liveness::kGone:
      return "killed";
    case store::Liveness::kUnknown:
      break;
  }
  return "running?";
}

std::string best_text(const SessionRow& s) {
  return "best confirmed " + (s.confirmed_cost > 0 ? speedup(s.confirmed_cost) : "none") +
         ", best screened " + speedup(s.best_cost);
}

std::string sessions_table(const std::vector<SessionRow>& rows) {
  char line[512];
  std::snprintf(line, sizeof line, "%-26s %-16s %-9s %6s %9s %9s  %-40s %s\n", "session", "started (UTC)",
                "state", "evals", "confirmed", "screened", "definition", "ended by");
  std::string out = line;
  for (const SessionRow& s : rows) {
    std::snprintf(line, sizeof line, "%-26s %-16s %-9s %6d %9s %9s  %-40s %s\n", s.id.c_str(),
                  time_text(s.started_unix_ns).c_str(), shown_state(s).c_str(), s.evaluations,
                  speedup(s.confirmed_cost).c_str(), speedup(s.best_cost).c_str(), s.definition.c_str(),
                  s.reason.substr(0, 60).c_str());
    out += line;
  }
  return out;
}

std::string digest_brief(const Digest& d) {
  const auto percent = [](const char* name, double share) {
    char text[48];
    std::snprintf(text, sizeof text, "%s %.0f %%", name, 100 * share);
    return std::string(text);
  };
  std::string out = diagnose(d).bottleneck;
  if (d.roof >= 0) out += ", " + percent("roof", d.roof);
  if (d.dram >= 0)
    out += ", " + percent("DRAM", d.dram);
  else if (d.l2 >= 0)
    out += ", " + percent("L2", d.l2);
  if (d.tensor >= 0) out += ", " + percent("tensor", d.tensor);
  if (d.threads > 0) out += ", " + percent("occupancy", d.occupancy) + " by " + d.limiter;
  if (d.spill_bytes > 0) out += ", spills " + std::to_string(d.spill_bytes) + " B";
  return out;
}

std::string tree_text(const SessionTree& t, bool all) {
  const SessionRow& s = t.session;
  std::string out = s.id + "  " + s.definition + "  " + s.arch + "  " + shown_state(s) +
                    (s.reason.empty() ? "" : ": " + s.reason) + "\n" + std::to_string(t.nodes.size()) +
                    " candidates, " + best_text(s) + "\n";
  if (const auto refused = t.refused(); !refused.empty()) {
    out += "refused:";
    for (const auto& [gate, n] : refused) out += ' ' + gate + ' ' + std::to_string(n);
    out += '\n';
  }
  if (const auto curve = t.curve(); !curve.empty()) {
    out += "best screened after";
    for (size_t n = 1; n <= curve.size(); n *= 2)
      if (curve[n - 1] > 0) out += "  " + std::to_string(n) + ": " + speedup(curve[n - 1]);
    out += "  " + std::to_string(curve.size()) + ": " + speedup(curve.back()) + '\n';
  }
  if (const auto d = t.digests.find(t.best()); d != t.digests.end())
    out += "the best, " + std::to_string(d->first) + ": " + digest_text(d->second) + "\n  bottleneck " +
           diagnosis_text(diagnose(d->second)) + '\n';
  std::set<int> shown;
  std::vector<const NodeRow*> by_cost;
  for (const NodeRow& n : t.nodes) {
    if (n.cost > 0) by_cost.push_back(&n);
    if (all || judged(n) || model(n)) shown.insert(n.id);
  }
  std::stable_sort(by_cost.begin(), by_cost.end(),
                   [](const NodeRow* a, const NodeRow* b) { return a->cost < b->cost; });
  for (size_t i = 0; i < std::min<size_t>(10, by_cost.size()); ++i) shown.insert(by_cost[i]->id);
  for (const int id : std::vector<int>(shown.begin(), shown.end()))
    for (const NodeRow* n = t.find(id); n != nullptr && n->parent >= 0; n = t.find(n->parent))
      if (!shown.insert(n->parent).second) break;
  std::map<int, std::vector<const NodeRow*>> children;
  for (const NodeRow& n : t.nodes)
    if (shown.contains(n.id)) children[shown.contains(n.parent) ? n.parent : -1].push_back(&n);
  const int best = t.best();
  // An explicit stack: lineages of thousands of steps exist.
  std::vector<std::pair<const NodeRow*, int>> stack;
  for (auto at = children[-1].rbegin(); at != children[-1].rend(); ++at) stack.emplace_back(*at, 0);
  while (!stack.empty()) {
    const auto [n, depth] = stack.back();
    stack.pop_back();
    out += std::string(static_cast<size_t>(std::min(2 * depth, 60)), ' ') +
           (n->id != best            ? "- "
            : n->outcome == "faster" ? "* "
                                     : "~ ") +
           std::to_string(n->id) + ' ' + speedup(n->cost) + ' ' + n->outcome + "  " + n->made_by + ": " +
           t.change(*n);
    if (const auto d = t.digests.find(n->id); d != t.digests.end())
      out += "  {" + digest_brief(d->second) + '}';
    if (n->outcome == "failed") out += "  [" + t.reason(n->id).substr(0, 80) + ']';
    out += '\n';
    auto& c = children[n->id];
    for (auto at = c.rbegin(); at != c.rend(); ++at) stack.emplace_back(*at, depth + 1);
  }
  if (shown.size() < t.nodes.size())
    out +=
        std::to_string(t.nodes.size() - shown.size()) + " more that were only screened; --all shows them\n";
  return out;
}

}  // namespace niche::evolve::report
