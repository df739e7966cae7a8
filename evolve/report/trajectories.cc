#include "evolve/report/trajectories.h"

#include <nlohmann/json.hpp>

#include "evolve/report/json_text.h"

namespace niche::evolve::report {
namespace {

using json = nlohmann::ordered_json;
using store::NodeRow;

std::string line(const json& j) { return j.dump(-1, ' ', false, json::error_handler_t::replace) + '\n'; }

double reward(const NodeRow& n) { return n.cost > 0 ? 1 / n.cost : 0; }

json about(const SessionTree& t) {
  return {{"session", t.session.id},
          {"definition", t.session.definition},
          {"op", t.session.op},
          {"dtype", t.session.dtype},
          {"arch", t.session.arch}};
}

std::string candidates(const SessionTree& t) {
  std::map<int, const store::EvaluationRow*> last;
  for (const auto& e : t.evaluations)
    if (e.kind != "profile") last[e.node] = &e;
  std::string out;
  for (const NodeRow& n : t.nodes) {
    json j = about(t);
    j["node"] = n.id;
    j["parent"] = n.parent < 0 ? json() : json(n.parent);
    j["second_parent"] = n.second_parent < 0 ? json() : json(n.second_parent);
    j["made_by"] = n.made_by;
    j["family"] = n.family;
    j["point"] = parsed(n.point_json);
    if (const auto text = t.texts.find(n.id); text != t.texts.end()) j["text"] = text->second;
    j["outcome"] = n.outcome;
    j["cost"] = n.cost;
    j["reward"] = reward(n);
    if (const auto e = last.find(n.id); e != last.end()) {
      j["gate"] = e->second->gate;
      j["reason"] = e->second->reason;
      j["verdict"] = parsed(e->second->verdict_json);
    }
    if (const auto d = t.digests.find(n.id); d != t.digests.end()) {
      const Diagnosis diagnosis = diagnose(d->second);
      j["digest"] = parsed(digest_to_json(d->second));
      j["bottleneck"] = diagnosis.bottleneck;
      j["bottleneck_because"] = diagnosis.because;
    }
    out += line(j);
  }
  return out;
}

// A model's answers with their programs.
struct Exchange {
  json request, reply;
  std::vector<const NodeRow*> programs;
  const NodeRow* best() const {
    const NodeRow* b = nullptr;
    for (const NodeRow* n : programs)
      if (b == nullptr || reward(*n) > reward(*b)) b = n;
    return b;
  }
};

std::vector<Exchange> exchanges(const SessionTree& t) {
  std::map<std::string, Exchange> by_hash;
  std::vector<std::string> order;
  for (const NodeRow& n : t.nodes) {
    if (n.family != "model") continue;
    const std::string hash = string_at(parsed(n.point_json), "exchange");
    const auto text = t.exchanges.find(hash);
    if (text == t.exchanges.end()) continue;
    Exchange& e = by_hash[hash];
    if (e.programs.empty()) {
      const json j = parsed(text->second);
      if (!j.is_object() || !j.contains("request") || !j.contains("reply")) continue;
      e.request = j["request"];
      e.reply = j["reply"];
      order.push_back(hash);
    }
    e.programs.push_back(&n);
  }
  std::vector<Exchange> list;
  for (const std::string& hash : order) list.push_back(std::move(by_hash[hash]));
  return list;
}

json prompt_of(const Exchange& e) {
  return json::array({{{"role", "system"}, {"content", string_at(e.request, "stable")}},
                      {{"role", "user"}, {"content", string_at(e.request, "prompt")}}});
}

std::string sft(const SessionTree& t) {
  std::string out;
  for (const Exchange& e : exchanges(t)) {
    const NodeRow* best = e.best();
    const NodeRow* parent = t.find(best->parent);
    if (reward(*best) <= (parent != nullptr ? reward(*parent) : 1)) continue;
    json j = about(t);
    j["node"] = best->id;
    j["task"] = best->made_by;
    j["reward"] = reward(*best);
    j["verified"] = best->outcome == "faster";
    j["messages"] = prompt_of(e);
    j["messages"].push_back({{"role", "assistant"}, {"content", string_at(e.reply, "text")}});
    out += line(j);
  }
  return out;
}

std::string dpo(const SessionTree& t) {
  std::string out;
  const auto pair = [&](const Exchange& e, const std::string& chosen, const std::string& rejected,
                        double better, double worse) {
    // Within 2 % both are as good as each other: screens repeat to about 1 %.
    if (better < 1.02 * worse || better <= 0) return;
    json j = about(t);
    j["prompt"] = prompt_of(e);
    j["chosen"] = chosen;
    j["rejected"] = rejected;
    j["margin"] = worse > 0 ? json(better / worse) : json();
    j["reward_chosen"] = better;
    j["reward_rejected"] = worse;
    out += line(j);
  };
  const auto list = exchanges(t);
  for (const Exchange& e : list)
    for (const NodeRow* a : e.programs)
      for (const NodeRow* b : e.programs)
        if (t.texts.contains(a->id) && t.texts.contains(b->id))
          pair(e, t.texts.at(a->id), t.texts.at(b->id), reward(*a), reward(*b));
  for (const Exchange& a : list)
    for (const Exchange& b : list)
      if (&a != &b && a.best()->parent == b.best()->parent && a.best()->made_by == b.best()->made_by)
        pair(a, string_at(a.reply, "text"), string_at(b.reply, "text"), reward(*a.best()), reward(*b.best()));
  return out;
}

}  // namespace

dispatch::Result<std::string> export_session(const SessionTree& tree, const std::string& format) {
  if (format == "jsonl") return candidates(tree);
  if (format == "sft") return sft(tree);
  if (format == "dpo") return dpo(tree);
  return dispatch::invalid("export format '" + format + "': there are jsonl, sft and dpo");
}

}  // namespace niche::evolve::report
