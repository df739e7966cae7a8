#include "evolve/session/model_search.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "evolve/candidate_text.h"
#include "evolve/proposer/reply_parser.h"
#include "evolve/search/rng.h"
#include "evolve/session/session.h"

namespace niche::evolve {
namespace {

using dispatch::Status;
using Weighted = std::function<double(const std::vector<double>&)>;

constexpr size_t kSkillBytes = 2 << 10;

// ShinkaEvolve's weight: above the median by the spread is good, many children less so.
std::vector<double> parent_weights(const std::vector<double>& costs, const std::vector<int>& children) {
  std::vector<double> sorted = costs;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2];
  std::vector<double> deviation;
  for (double c : costs) deviation.push_back(std::abs(c - median));
  std::sort(deviation.begin(), deviation.end());
  const double spread = std::max(0.01 * median, deviation[deviation.size() / 2]);
  std::vector<double> weights;
  for (size_t i = 0; i < costs.size(); ++i)
    weights.push_back(1 / (1 + std::exp(3 * (costs[i] - median) / spread)) / (1 + children[i]));
  return weights;
}

size_t draw(const std::vector<double>& weights, search::Rng& rng) {
  double sum = 0;
  for (double w : weights) sum += w;
  double at = rng.uniform() * sum;
  for (size_t i = 0; i < weights.size(); ++i)
    if ((at -= weights[i]) < 0) return i;
  return weights.size() - 1;
}

}  // namespace

bool ModelSearch::may_go_on() const {
  if (parts_.source == nullptr || parts_.source->ended()) return false;
  return !parts_.source->idle() ||
         (questions_ < parts_.options.questions_max && failed_questions_ < kFailedQuestionsMax);
}

ModelSearch::Choice ModelSearch::choose(const std::vector<TemplateMaterial>& templates,
                                        const Weighted& weighted) {
  search::Rng rng(seed_ ^ (0x6d6f64656cULL + static_cast<uint64_t>(questions_) * 0x9e3779b97f4a7c15ULL));
  Choice c;
  // A lineage that fails a gate is repaired first; after five repairs in a row it is left alone.
  if (!programs_.empty()) {
    const Program& last = programs_.rbegin()->second;
    if (last.settled && !last.valid() && last.fixes < kFixesMax && last.children == 0 &&
        last.gate != "screen" && last.gate != "duplicate") {
      c.task.task = "repair";
      c.task.memory = "inherit";
      c.parent = last.id;
      c.fixes = last.fixes + 1;
      c.task.parent = last.text;
      c.task.parent_name = last.name;
      c.task.failure = last.gate + ": " + last.reason;
      return c;
    }
  }
  struct Parent {
    int node;
    double cost;
    int children;
  };
  std::vector<Parent> parents;
  for (const auto& [id, p] : programs_)
    if (p.valid()) parents.push_back({id, weighted(p.costs), p.children});
  std::sort(parents.begin(), parents.end(), [](const Parent& a, const Parent& b) { return a.cost < b.cost; });
  if (parents.size() > 8) parents.resize(8);
  for (const TemplateMaterial& t : templates) {
    int children = 0;
    for (const auto& [id, p] : programs_) children += p.parent == t.node;
    parents.push_back({t.node, t.cost, children});
  }
  const auto show = [&](const Parent& p, std::string& text, std::string& name) {
    if (is_program(p.node)) {
      text = programs_.at(p.node).text;
      name = programs_.at(p.node).name;
      return;
    }
    for (const TemplateMaterial& t : templates)
      if (t.node == p.node) text = t.text, name = t.label;
  };
  const bool restart = idle_ >= kIdleMax;
  if (restart) idle_ = 0;
  if (questions_ == 0 || parents.empty() || restart) {
    c.task.task = "draft";
    return c;
  }
  std::vector<double> costs;
  std::vector<int> children;
  for (const Parent& p : parents) costs.push_back(p.cost), children.push_back(p.children);
  // The second question starts from what the templates found.
  const size_t first = questions_ == 1 && !templates.empty() ? parents.size() - templates.size()
                                                             : draw(parent_weights(costs, children), rng);
  c.parent = parents[first].node;
  c.task.task = "improve";
  c.task.memory = rng.chance(0.5) ? "inherit" : "siblings";
  c.task.parent_cost = parents[first].cost;
  show(parents[first], c.task.parent, c.task.parent_name);
  if (parents.size() > 1 && questions_ > 3 && rng.chance(0.2)) {
    costs.erase(costs.begin() + static_cast<ptrdiff_t>(first));
    children.erase(children.begin() + static_cast<ptrdiff_t>(first));
    parents.erase(parents.begin() + static_cast<ptrdiff_t>(first));
    const Parent& other = parents[draw(parent_weights(costs, children), rng)];
    c.task.task = "combine";
    c.task.memory = "combine";
    c.second = other.node;
    show(other, c.task.second, c.task.second_name);
  }
  return c;
}

// Which of the past a step sees: its ancestors, its parent's other children, everything, or nothing but how
// good the best is. Whole histories pollute (PACEvolve): the best and the last failures are enough.
void ModelSearch::add_history(Choice& c, const std::vector<TemplateMaterial>& templates,
                              const Weighted& weighted) const {
  ProposalTask& task = c.task;
  std::set<int> shown;
  if (task.memory == "inherit")
    for (auto at = programs_.find(c.parent); at != programs_.end() && shown.insert(at->first).second;)
      at = programs_.find(at->second.parent);
  std::vector<Attempt> valid, failed;
  double best = 0;
  for (const auto& [id, p] : programs_) {
    if (!p.settled) continue;
    const double cost = p.valid() ? weighted(p.costs) : 0;
    if (cost > 0 && (best == 0 || cost < best)) best = cost;
    if (task.memory == "none" || (task.memory == "inherit" && !shown.contains(id)) ||
        (task.memory == "siblings" && p.parent != c.parent && id != c.parent))
      continue;
    (cost > 0 ? valid : failed).push_back({p.name, p.description, cost, p.gate + ": " + p.reason});
  }
  if (!templates.empty()) {
    if (task.memory != "none") valid.push_back({"template " + templates[0].label, "", templates[0].cost, ""});
    if (best == 0 || templates[0].cost < best) best = templates[0].cost;
  }
  std::stable_sort(valid.begin(), valid.end(),
                   [](const Attempt& a, const Attempt& b) { return a.cost > b.cost; });
  task.best_cost = best > 0 ? best : 1;
  if (valid.size() > 5) valid.erase(valid.begin(), valid.end() - 5);
  if (failed.size() > 3) failed.erase(failed.begin(), failed.end() - 3);
  task.attempts = std::move(failed);
  task.attempts.insert(task.attempts.end(), valid.begin(), valid.end());
}

void ModelSearch::add_diagnosis(Choice& c, const std::vector<TemplateMaterial>& templates) const {
  if (digests_ == nullptr || c.task.task == "repair") return;
  const bool anew = c.parent < 0;
  const auto at = digests_->find(!anew ? c.parent : templates.empty() ? -1 : templates[0].node);
  if (at == digests_->end()) return;
  c.task.metrics = digest_metrics(at->second);
  c.task.topic = diagnose(at->second).topic;
  c.task.diagnosis = diagnosis_section(
      at->second,
      anew ? "the best so far, template " + templates[0].label : "the program '" + c.task.parent_name + "'",
      parts_.library != nullptr ? method_page(*parts_.library, at->second, arch_name(facts_.target))
                                : nullptr);
}

void ModelSearch::ask(const std::function<std::vector<TemplateMaterial>()>& templates,
                      const Weighted& weighted) {
  if (!may_go_on() || !parts_.source->idle()) return;
  // One program's result before the next question: what it showed belongs into it.
  for (const auto& [id, p] : programs_)
    if (!p.settled) return;
  const auto material = templates();
  for (const TemplateMaterial& t : material) known_cost_[t.node] = t.cost;
  Choice c = choose(material, weighted);
  add_history(c, material, weighted);
  add_diagnosis(c, material);
  if (c.task.failure.empty()) c.task.failure = std::exchange(last_failure_, {});
  if (parts_.library != nullptr)
    if (auto hits = parts_.library->search(knowledge_query(facts_, c.task)); hits.ok())
      for (kb::Hit& h : *hits)
        if (h.tier == "guidance" || h.tier == "samples") c.task.notes.push_back(std::move(h));
  if (parts_.skills != nullptr)
    if (auto picked = parts_.skills->pick(facts_.definition->schema().op,
                                          std::string(dispatch::dtype_name(facts_.definition->dtype())),
                                          arch_name(facts_.target), c.task.failure, kSkillBytes);
        picked.ok())
      c.task.skills = std::move(*picked);
  // Two thirds for what stays, so that what a question is about has its place.
  const auto bytes_max = static_cast<size_t>(parts_.options.context_bytes_max);
  if (stable_.empty()) stable_ = stable_part(facts_, parts_.library, bytes_max * 2 / 3);
  request_ = {};
  request_.id = session_ + "-p" + std::to_string(questions_ + 1);
  request_.task = c.task.task;
  request_.stable = stable_;
  // At least a byte: 0 would be no limit.
  request_.prompt =
      changing_part(facts_, c.task, bytes_max == 0 ? 0 : bytes_max - std::min(bytes_max - 1, stable_.size()));
  request_.parent = c.task.parent;
  request_.seconds_max = parts_.options.answer_seconds_max;
  request_.tokens_max = parts_.options.answer_tokens_max;
  if (bytes_max > 0)
    request_.tokens_max = std::min<int>(request_.tokens_max, static_cast<int>(bytes_max / 4));
  ++questions_;
  pending_ = std::move(c);
  if (Status s = parts_.source->start(request_); !s.ok() && trouble_.empty()) trouble_ = s.message();
}

std::optional<ModelSearch::Answer> ModelSearch::poll(int timeout_ms, int batch) {
  if (parts_.source == nullptr) return std::nullopt;
  auto came = parts_.source->poll(timeout_ms);
  if (!came) return std::nullopt;
  if (!take_account() && came->ok()) {
    spent_.input_tokens += (*came)->usage.input_tokens;
    spent_.output_tokens += (*came)->usage.output_tokens;
    spent_.usd += (*came)->usage.usd;
  }
  const auto failed = [&](const std::string& why) {
    ++failed_questions_;
    if (trouble_.empty()) trouble_ = why;
    return Answer{{}, "", why};
  };
  if (!came->ok()) return failed(came->status().message());
  const proposer::ProposalReply& reply = **came;
  auto programs = proposer::parse_reply(reply.text, request_.parent);
  if (!programs.ok()) {
    last_failure_ = "the last answer held no program: " + programs.status().message();
    return failed(request_.id + ": " + programs.status().message());
  }
  Answer answer;
  Status trouble;
  for (proposer::Program& one : *programs) {
    Program p;
    p.id = next_id();
    p.batch = batch;
    p.parent = pending_.parent;
    p.second_parent = pending_.second;
    p.task = pending_.task.task;
    p.memory = pending_.task.memory;
    p.fixes = pending_.fixes;
    p.name = one.name.empty() ? request_.id : std::move(one.name);
    p.description = std::move(one.description);
    p.text = std::move(one.code);
    p.model = reply.model;
    for (const kb::Skill& s : pending_.task.skills) p.skills.push_back(s.id);
    const int id = p.id;
    if (Status s = restore(std::move(p)); s.ok())
      answer.programs.push_back(id);
    else if (trouble.ok())
      trouble = s;
  }
  if (answer.programs.empty()) {
    last_failure_ = "the last answer's program was refused: " + trouble.message();
    return failed(request_.id + ": " + trouble.message());
  }
  failed_questions_ = 0;
  answer.exchange =
      nlohmann::ordered_json{{"request", nlohmann::ordered_json::parse(proposer::request_to_json(request_))},
                             {"reply", nlohmann::ordered_json::parse(proposer::reply_to_json(reply))}}
          .dump();
  return answer;
}

bool ModelSearch::take_account() {
  if (const auto counted = parts_.source->spent()) spent_ = *counted, counted_ = true;
  return counted_;
}

bool ModelSearch::finish(double seconds_max) {
  if (parts_.source == nullptr || parts_.source->ended() || parts_.source->idle()) return false;
  const double usd_before = usd();
  const int64_t tokens_before = tokens();
  parts_.source->finish(seconds_max);
  (void)take_account();
  return usd() > usd_before || tokens() > tokens_before;
}

void ModelSearch::take_up(int questions, int failed_in_a_row, double usd, int64_t tokens) {
  questions_ = questions;
  failed_questions_ = failed_in_a_row;
  earlier_ = {};
  earlier_.usd = usd;
  earlier_.output_tokens = tokens;
  if (parts_.source == nullptr || (usd <= 0 && tokens <= 0)) return;
  if (Status s = parts_.source->start_from(earlier_); !s.ok() && trouble_.empty()) trouble_ = s.message();
  (void)take_account();
}

Status ModelSearch::restore(Program program) {
  auto candidate = candidate_from_text(*facts_.definition, "program", program.text, facts_.target.cuda.get());
  if (!candidate.ok()) return candidate.status();
  program.source = std::move(candidate->source);
  if (const auto parent = programs_.find(program.parent); parent != programs_.end())
    ++parent->second.children;
  programs_.emplace(program.id, std::move(program));
  return {};
}

void ModelSearch::observed(int id, const Weighted& weighted, std::optional<int64_t> unix_ns) {
  const Program& p = programs_.at(id);
  const double cost = p.valid() ? weighted(p.costs) : 0;
  if (cost > 0 && (best_ == 0 || cost < 0.99 * best_))
    best_ = cost, idle_ = 0;
  else if (cost > 0)
    ++idle_;
  double before = 0;  // what the question set out from
  if (const auto parent = programs_.find(p.parent); parent != programs_.end())
    before = parent->second.valid() ? weighted(parent->second.costs) : 0;
  else if (const auto t = known_cost_.find(p.parent); t != known_cost_.end())
    before = t->second;
  if (parts_.skills == nullptr || !unix_ns) return;
  const bool helped = cost > 0 && (p.task == "repair" || cost < 0.98 * (before > 0 ? before : 1));
  Status s = parts_.skills->shown(p.skills, helped);
  if (s.ok() && p.task == "repair" && p.valid())
    if (const auto parent = programs_.find(p.parent); parent != programs_.end()) {
      kb::Skill lesson;
      lesson.kind = "lesson";
      lesson.op = facts_.definition->schema().op;
      lesson.dtype = std::string(dispatch::dtype_name(facts_.definition->dtype()));
      lesson.arch = arch_name(facts_.target);
      lesson.title = parent->second.gate + ": " + clipped_error(parent->second.reason, 200);
      lesson.text = "Cured by: " + p.description;
      lesson.session = session_;
      lesson.unix_ns = *unix_ns;
      s = parts_.skills->add(lesson).status();
    }
  if (!s.ok() && trouble_.empty()) trouble_ = s.message();
}

void ModelSearch::learn_win(const std::string& title, const std::string& text, double gain, int64_t unix_ns) {
  if (parts_.skills == nullptr) return;
  kb::Skill win;
  win.kind = "win";
  win.op = facts_.definition->schema().op;
  win.dtype = std::string(dispatch::dtype_name(facts_.definition->dtype()));
  win.arch = arch_name(facts_.target);
  win.title = title;
  win.text = text;
  win.gain = gain;
  win.session = session_;
  win.unix_ns = unix_ns;
  if (auto id = parts_.skills->add(win); !id.ok() && trouble_.empty()) trouble_ = id.status().message();
}

}  // namespace niche::evolve
