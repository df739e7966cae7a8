// A session's steps with a model: questions, answers, and programs as candidates.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "evolve/candidate_text.h"
#include "evolve/session/session_impl.h"
#include "kernels_cache/sha256.h"

namespace niche::evolve {

using dispatch::Status;

namespace {

constexpr const char* kAnswered = "programs";  // a question's outcome
constexpr int kMaterial = 2;                   // template points that a question may show
constexpr int kWaitMs = 100;                   // for an answer, when there is nothing else to do

}  // namespace

void SessionImpl::start_models() {
  models_->set_facts({op_.get(), definition_.get(), parts_.target, baselines_});
  models_->set_digests(&digests_);
}

KernelSource SessionImpl::source_of(int node, const std::string& suffix) const {
  if (is_program(node)) {
    KernelSource s = models_->at(node).source;
    rename_entries(s, suffix);
    return s;
  }
  const search::FamilyPoint& at = tree_.node(node).candidate;
  return space_.at(at.family).render(*definition_, parts_.target, at.point, suffix);
}

std::string SessionImpl::win_text(int node, const Verdict& verdict) const {
  std::string text = is_program(node) ? models_->at(node).description + '\n' : std::string();
  const auto vars = definition_->var_axes();
  for (const PointTiming& t : verdict.timing) {
    for (size_t i = 0; i < t.var_axes.size() && i < vars.size(); ++i)
      text += definition_->schema().axes[static_cast<size_t>(vars[i])].name + '=' +
              std::to_string(t.var_axes[i]) + ' ';
    char figures[96];
    std::snprintf(figures, sizeof figures, "%.2f times '", t.speedup);
    text += figures + t.fallback + "'\n";
  }
  return text;
}

std::vector<TemplateMaterial> SessionImpl::template_material() const {
  std::vector<TemplateMaterial> material;
  for (int node : tree_.elites(kMaterial))
    material.push_back({node, label(node), candidate_to_text(*definition_, source_of(node, "")),
                        objective_.of(node_costs_[static_cast<size_t>(node)])});
  return material;
}

void SessionImpl::step_models(std::vector<store::EvaluationRow>& rows) {
  reuse_known_programs(rows);
  if (!models_go_on()) return;
  // The templates' first results come before the first question: they show what is reachable.
  if (tree_.size() == 0 && !exhausted_) return;
  const auto weighted = [this](const std::vector<double>& costs) { return objective_.of(costs); };
  models_->ask([this] { return template_material(); }, weighted);
  const bool nothing_else = exhausted_ || stagnant_;
  const auto answer = models_->poll(nothing_else ? kWaitMs : 0, batch_);
  if (!answer) return;
  if (parts_.store != nullptr && !answer->programs.empty()) {
    const std::string hash = kernels_cache::to_hex(kernels_cache::sha256(answer->exchange));
    recorder_.source(answer->exchange);
    for (int id : answer->programs) models_->at(id).exchange = hash;
  }
  recorder_.question({models_->questions(), answer->programs.empty() ? answer->failure : kAnswered,
                      models_->usd(), models_->tokens()});
  if (!answer->programs.empty()) take_programs(answer->programs, rows);
}

void SessionImpl::take_programs(const std::vector<int>& ids, std::vector<store::EvaluationRow>& rows) {
  std::vector<int> fresh;
  for (int id : ids) {
    Program& p = models_->at(id);
    p.source.kernel_name = definition_->schema().op + '.' +
                           std::string(dispatch::dtype_name(definition_->dtype())) + ".model." +
                           rendered(id).text_hash.substr(0, 10) + '.' +
                           arch_name(parts_.target).substr(arch_name(parts_.target).find('.') + 1);
    if (note_source(id, rendered(id))) fresh.push_back(id);
    const nlohmann::ordered_json about{
        {"name", p.name},   {"description", p.description}, {"model", p.model},  {"exchange", p.exchange},
        {"fixes", p.fixes}, {"memory", p.memory},           {"skills", p.skills}};
    recorder_.program(p, about.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  ++batch_;
  screen(fresh, rows);
  apply_twins(rows);
  for (int id : fresh)
    if (const Program& p = models_->at(id); p.valid() && !plan_.worth_judging(p.costs, false))
      second_look_.push_back(id);
}

// A screen is a few pairs at one moment, and a program has cost a question: it is screened once more, a batch later, before
// it counts as too slow to judge. The better of the two screens stands; what is worth judging by it is judged on evidence of
// its own.
void SessionImpl::look_again(std::vector<store::EvaluationRow>& rows) {
  const std::vector<int> nodes = std::exchange(second_look_, {});
  if (nodes.empty() || tried_ >= request_.evaluations_max) return;
  std::vector<Candidate> candidates;
  for (int node : nodes)
    candidates.push_back(
        {label(node), source_of(node, std::string(kFixedSuffix) + std::to_string(candidates.size()))});
  const std::vector<Verdict> verdicts = evaluator_->screen(candidates);
  for (size_t i = 0; i < std::min(nodes.size(), verdicts.size()); ++i) {
    const auto costs = costs_.of(verdicts[i]);
    const bool passed = verdicts[i].status != VerdictStatus::kRejected && costs.has_value();
    if (passed && costs_.weighted(*costs) < costs_.weighted(costs_at(nodes[i])))
      apply_screen(nodes[i], verdicts[i], rows);
    else
      ++tried_;
  }
}

// A kernel that a model wrote for this operator before is verified again, not invented again.
void SessionImpl::reuse_known_programs(std::vector<store::EvaluationRow>& rows) {
  std::vector<int> ids;
  for (auto& [name, text] : std::exchange(known_programs_, {})) {
    Program p;
    p.id = models_->next_id();
    p.batch = batch_;
    p.task = "known";
    p.name = name;
    p.text = std::move(text);
    const int id = p.id;
    if (models_->restore(std::move(p)).ok()) ids.push_back(id);
  }
  if (!ids.empty()) take_programs(ids, rows);
}

// Takes the programs out of the history and puts them where they were.
Status SessionImpl::restore_programs() {
  int exchanges = 0;
  std::string last_exchange;
  for (const store::NodeRow& n : history_.nodes) {
    if (n.family != kProgramFamily) continue;
    auto text = parts_.store->blob(n.source_hash);
    if (!text.ok()) return text.status();
    const auto about = nlohmann::json::parse(n.point_json, nullptr, false);
    if (!about.is_object())
      return dispatch::corrupt("store: program " + std::to_string(n.id) + " has no readable record");
    Program p;
    try {
      p.name = about.value("name", "");
      p.description = about.value("description", "");
      p.model = about.value("model", "");
      p.exchange = about.value("exchange", "");
      p.fixes = about.value("fixes", 0);
      p.memory = about.value("memory", "");
      p.skills = about.value("skills", std::vector<int64_t>{});
    } catch (const nlohmann::json::exception& e) {
      return dispatch::corrupt("store: program " + std::to_string(n.id) + ": " + e.what());
    }
    p.id = n.id;
    p.batch = n.batch;
    p.parent = n.parent;
    p.second_parent = n.second_parent;
    p.task = n.made_by;
    p.text = std::move(*text);
    if (p.task != "known" && p.exchange != last_exchange) ++exchanges, last_exchange = p.exchange;
    NICHE_RETURN_IF_ERROR(models_->restore(std::move(p)));
    note_source(n.id, rendered(n.id));
    batch_ = std::max(batch_, n.batch + 1);
  }
  int failed = 0;
  for (const store::QuestionRow& q : history_.questions) failed = q.outcome == kAnswered ? 0 : failed + 1;
  // A store of schema 1 has programs and no questions.
  const store::QuestionRow last =
      history_.questions.empty() ? store::QuestionRow() : history_.questions.back();
  models_->take_up(std::max(last.number, exchanges), failed, last.usd, last.tokens);
  std::erase_if(history_.nodes, [](const store::NodeRow& n) { return n.family == kProgramFamily; });
  return {};
}

}  // namespace niche::evolve
