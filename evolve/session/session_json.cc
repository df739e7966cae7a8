#include "evolve/session/session_json.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

namespace niche::evolve {
namespace {

using dispatch::invalid;
using dispatch::Result;
using nlohmann::json;

constexpr size_t kProblemsMax = 64;
constexpr std::array<const char*, 4> kKinds{"progress", "kernel", "done", "failed"};

json problems_json(const std::vector<SeenProblem>& problems) {
  json list = json::array();
  for (const SeenProblem& p : problems)
    list.push_back({{"axes", p.var_axes}, {"weight", p.weight}, {"cold", p.cold}});
  return list;
}

// nlohmann's exceptions become a Status here: `read` may use at() and get<>() freely.
template <typename T, typename Read>
Result<T> parse(std::string_view text, const char* what, Read read) {
  try {
    return read(json::parse(text));
  } catch (const json::exception& e) {
    return invalid(std::string(what) + ": " + e.what());
  }
}

Result<std::vector<SeenProblem>> problems_of(const json& list) {
  if (!list.is_array()) return invalid("problems: not an array");
  if (list.size() > kProblemsMax)
    return invalid("problems: " + std::to_string(list.size()) + ", at most " + std::to_string(kProblemsMax));
  std::vector<SeenProblem> out;
  for (const json& p : list) {
    SeenProblem seen;
    seen.var_axes = p.at("axes").get<std::vector<int64_t>>();
    seen.weight = p.at("weight").get<double>();
    seen.cold = p.at("cold").get<bool>();
    if (seen.var_axes.size() > dispatch::kMaxVarAxes) return invalid("problems: too many axes");
    if (!std::isfinite(seen.weight) || seen.weight < 0) return invalid("problems: a weight below 0");
    out.push_back(std::move(seen));
  }
  return out;
}

json model_json(const ModelRequest& m) {
  return {{"proposer", m.proposer},
          {"key_file", m.key_file},
          {"price", m.price},
          {"usd_max", m.usd_max},
          {"tokens_max", m.tokens_max},
          {"questions_max", m.questions_max},
          {"answer_seconds_max", m.answer_seconds_max},
          {"context_bytes_max", m.context_bytes_max}};
}

ModelRequest model_of(const json& j) {
  ModelRequest m;
  j.at("proposer").get_to(m.proposer);
  j.at("key_file").get_to(m.key_file);
  j.at("price").get_to(m.price);
  j.at("usd_max").get_to(m.usd_max);
  j.at("tokens_max").get_to(m.tokens_max);
  j.at("questions_max").get_to(m.questions_max);
  j.at("answer_seconds_max").get_to(m.answer_seconds_max);
  m.context_bytes_max = j.value("context_bytes_max", m.context_bytes_max);
  return m;
}

std::string dump(const json& j) { return j.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace

std::string problems_to_json(const std::vector<SeenProblem>& problems) {
  return dump(problems_json(problems));
}

Result<std::vector<SeenProblem>> problems_from_json(std::string_view text) {
  return parse<std::vector<SeenProblem>>(text, "problems", problems_of);
}

std::string request_to_json(const SessionRequest& r) {
  return dump({{"session_id", r.session_id},
               {"definition", r.definition_json},
               {"problems", problems_json(r.problems)},
               {"cache_dir", r.cache_dir},
               {"store_path", r.store_path},
               {"op_libraries", r.op_libraries},
               {"python_program", r.python_program},
               {"wall_seconds_max", r.wall_seconds_max},
               {"evaluations_max", r.evaluations_max},
               {"target_speedup", r.target_speedup},
               {"threads", r.threads},
               {"seed", r.seed},
               {"policy", r.policy},
               {"batch", r.batch},
               {"cache_bytes_max", r.cache_bytes_max},
               {"device", r.device},
               {"model", model_json(r.model)},
               {"resume", r.resume}});
}

Result<SessionRequest> request_from_json(std::string_view text) {
  return parse<SessionRequest>(text, "session request", [](const json& j) -> Result<SessionRequest> {
    SessionRequest r;
    j.at("session_id").get_to(r.session_id);
    j.at("definition").get_to(r.definition_json);
    auto problems = problems_of(j.at("problems"));
    if (!problems.ok()) return problems.status();
    r.problems = std::move(*problems);
    j.at("cache_dir").get_to(r.cache_dir);
    j.at("store_path").get_to(r.store_path);
    j.at("op_libraries").get_to(r.op_libraries);
    r.python_program = j.value("python_program", r.python_program);  // absent in older stores
    j.at("wall_seconds_max").get_to(r.wall_seconds_max);
    j.at("evaluations_max").get_to(r.evaluations_max);
    j.at("target_speedup").get_to(r.target_speedup);
    j.at("threads").get_to(r.threads);
    j.at("seed").get_to(r.seed);
    j.at("policy").get_to(r.policy);
    j.at("batch").get_to(r.batch);
    r.cache_bytes_max = j.value("cache_bytes_max", r.cache_bytes_max);  // absent in older stores
    r.device = j.value("device", "");                                   // absent in older stores
    if (j.contains("model")) r.model = model_of(j.at("model"));         // absent in older stores
    j.at("resume").get_to(r.resume);
    if (r.cache_bytes_max < 1) return invalid("session request: cache_bytes_max must be at least 1");
    if (r.problems.empty()) return invalid("session request: no problem to optimise for");
    if (!(r.wall_seconds_max > 0) || !std::isfinite(r.wall_seconds_max))
      return invalid("session request: wall_seconds_max must be positive and finite");
    if (r.evaluations_max < 1) return invalid("session request: evaluations_max must be at least 1");
    if (r.threads < 1) return invalid("session request: threads must be at least 1");
    if (!(r.model.usd_max >= 0) || r.model.tokens_max < 0 || r.model.questions_max < 0 ||
        !(r.model.answer_seconds_max > 0) || r.model.context_bytes_max < 0)
      return invalid("session request: a bound of the model is negative, or its time for an answer is 0");
    if (r.batch < 1 || r.batch > 64) return invalid("session request: batch must be 1 to 64");
    return r;
  });
}

std::string event_to_json(const SessionEvent& e) {
  return dump({{"kind", kKinds[static_cast<size_t>(e.kind)]},
               {"record_file", e.record_file},
               {"kernel_name", e.kernel_name},
               {"best_speedup", e.best_speedup},
               {"committed_speedup", e.committed_speedup},
               {"kernels", e.kernels},
               {"tried", e.tried},
               {"rejected", e.rejected},
               {"seconds_used", e.seconds_used},
               {"questions", e.questions},
               {"programs", e.programs},
               {"model_usd", e.model_usd},
               {"reason", e.reason},
               {"warning", e.warning},
               {"model_trouble", e.model_trouble},
               {"spent", e.spent}});
}

Result<SessionEvent> event_from_json(std::string_view text) {
  return parse<SessionEvent>(text, "session event", [](const json& j) -> Result<SessionEvent> {
    SessionEvent e;
    const auto kind = j.at("kind").get<std::string>();
    size_t k = 0;
    while (k < kKinds.size() && kind != kKinds[k]) ++k;
    if (k == kKinds.size()) return invalid("session event: unknown kind '" + kind + "'");
    e.kind = static_cast<SessionEvent::Kind>(k);
    j.at("record_file").get_to(e.record_file);
    j.at("kernel_name").get_to(e.kernel_name);
    j.at("best_speedup").get_to(e.best_speedup);
    j.at("committed_speedup").get_to(e.committed_speedup);
    j.at("kernels").get_to(e.kernels);
    j.at("tried").get_to(e.tried);
    j.at("rejected").get_to(e.rejected);
    j.at("seconds_used").get_to(e.seconds_used);
    j.at("questions").get_to(e.questions);
    j.at("programs").get_to(e.programs);
    j.at("model_usd").get_to(e.model_usd);
    j.at("reason").get_to(e.reason);
    j.at("warning").get_to(e.warning);
    j.at("model_trouble").get_to(e.model_trouble);
    j.at("spent").get_to(e.spent);
    return e;
  });
}

std::string last_words(const SessionEvent& e) {
  std::string text = e.reason;
  if (!e.warning.empty()) text += " (" + e.warning + ')';
  if (!e.model_trouble.empty()) text += " (model: " + e.model_trouble + ')';
  if (!e.spent.empty()) text += "; " + e.spent;
  return text;
}

}  // namespace niche::evolve
