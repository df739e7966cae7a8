#include "evolve/probe/probe_protocol.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace niche::evolve::probe {
namespace {

using nlohmann::json;
using Type = Message::Type;

constexpr const char* kTypes[] = {"ready", "jobs", "ask", "permit", "returned", "results"};

json phase_to_json(const dispatch::CudaPhase& p) {
  json factors = json::array();
  for (const dispatch::TaskFactor& f : p.factors) factors.push_back({f.axis, f.divisor});
  return {{"symbol", p.symbol},       {"factors", factors},         {"threads", p.threads},
          {"shared", p.shared_bytes}, {"persist", p.blocks_per_sm}, {"cluster", p.cluster},
          {"overlap", p.overlap}};
}
dispatch::CudaPhase phase_from_json(const json& j) {
  dispatch::CudaPhase p;
  j.at("symbol").get_to(p.symbol);
  for (const json& f : j.at("factors")) p.factors.push_back({f.at(0).get<int>(), f.at(1).get<int64_t>()});
  j.at("threads").get_to(p.threads);
  j.at("shared").get_to(p.shared_bytes);
  j.at("persist").get_to(p.blocks_per_sm);
  j.at("cluster").get_to(p.cluster);
  j.at("overlap").get_to(p.overlap);
  return p;
}

json job_to_json(const JobText& t) {
  json phases = json::array(), args = json::array();
  for (const auto& p : t.plan.phases) phases.push_back(phase_to_json(p));
  for (const auto& a : t.args) args.push_back({static_cast<int>(a.role), a.bytes, a.at, a.out_at});
  return {{"name", t.name},
          {"phases", phases},
          {"workspace", t.plan.workspace_bytes},
          {"sm_count", t.plan.sm_count},
          {"axes", t.axes},
          {"args", args},
          {"cubin", {t.cubin_at, t.cubin_bytes}},
          {"timed", t.timed_launches},
          {"race",
           {{"rounds", t.race.rounds},
            {"definition", t.race.definition_json},
            {"forms", t.race.forms},
            {"flush", t.race.flush_bytes},
            {"calls", t.race.calls},
            {"copies", t.race.copies},
            {"stop", {t.race.margin, t.race.e_faster, t.race.e_slower}},
            {"pacer", {t.pacer_at, t.pacer_bytes}}}}};
}

constexpr int kRoundsMax = 1024, kCallsMax = 64, kCopiesMax = 8;
constexpr size_t kFormsMax = 32;
constexpr int64_t kFlushBytesMax = int64_t{1} << 30;

void check_inside(int64_t at, int64_t bytes, int64_t memory_bytes, const char* what) {
  if (at < 0 || bytes < 0 || at > memory_bytes || bytes > memory_bytes - at)
    throw std::runtime_error(std::string(what) + " at " + std::to_string(at) + " of " +
                             std::to_string(bytes) + " bytes lies outside the shared memory");
}

JobText job_from_json(const json& j, int64_t memory_bytes) {
  JobText t;
  j.at("name").get_to(t.name);
  for (const json& p : j.at("phases")) t.plan.phases.push_back(phase_from_json(p));
  j.at("workspace").get_to(t.plan.workspace_bytes);
  j.at("sm_count").get_to(t.plan.sm_count);
  j.at("axes").get_to(t.axes);
  if (t.axes.size() > dispatch::kMaxAxes) throw std::runtime_error("too many axes");
  for (const json& a : j.at("args")) {
    const int role = a.at(0).get<int>();
    if (role < 0 || role > static_cast<int>(dispatch::ArgRole::kInOut))
      throw std::runtime_error("unknown role " + std::to_string(role));
    t.args.push_back({static_cast<dispatch::ArgRole>(role), a.at(1).get<int64_t>(), a.at(2).get<int64_t>(),
                      a.at(3).get<int64_t>()});
    check_inside(t.args.back().at, t.args.back().bytes, memory_bytes, "an argument");
    check_inside(t.args.back().out_at, t.args.back().bytes, memory_bytes, "an argument");
  }
  if (t.args.size() > dispatch::kMaxArgs) throw std::runtime_error("too many arguments");
  t.cubin_at = j.at("cubin").at(0).get<int64_t>();
  t.cubin_bytes = j.at("cubin").at(1).get<int64_t>();
  check_inside(t.cubin_at, t.cubin_bytes, memory_bytes, "the cubin");
  j.at("timed").get_to(t.timed_launches);
  const json& race = j.at("race");
  race.at("rounds").get_to(t.race.rounds);
  race.at("definition").get_to(t.race.definition_json);
  race.at("forms").get_to(t.race.forms);
  race.at("flush").get_to(t.race.flush_bytes);
  race.at("calls").get_to(t.race.calls);
  race.at("copies").get_to(t.race.copies);
  t.race.margin = race.at("stop").at(0).get<double>();
  t.race.e_faster = race.at("stop").at(1).get<double>();
  t.race.e_slower = race.at("stop").at(2).get<double>();
  t.pacer_at = race.at("pacer").at(0).get<int64_t>();
  t.pacer_bytes = race.at("pacer").at(1).get<int64_t>();
  check_inside(t.pacer_at, t.pacer_bytes, memory_bytes, "the pacer");
  if (t.race.rounds < 0 || t.race.rounds > kRoundsMax || t.race.forms.size() > kFormsMax ||
      t.race.calls < 1 || t.race.calls > kCallsMax || t.race.copies < 1 || t.race.copies > kCopiesMax ||
      t.race.flush_bytes < 0 || t.race.flush_bytes > kFlushBytesMax)
    throw std::runtime_error("a race out of bounds");
  return t;
}

json result_to_json(const JobResult& r) {
  return {
      {"end", static_cast<int>(r.end)}, {"text", r.text}, {"launch_us", r.launch_us}, {"form_us", r.form_us}};
}
JobResult result_from_json(const json& j) {
  JobResult r;
  const int end = j.at("end").get<int>();
  if (end < 0 || end > static_cast<int>(ProbeEnd::kUndecided))
    throw std::runtime_error("unknown end " + std::to_string(end));
  r.end = static_cast<ProbeEnd>(end);
  j.at("text").get_to(r.text);
  j.at("launch_us").get_to(r.launch_us);
  j.at("form_us").get_to(r.form_us);
  return r;
}

Message read(const json& j, int64_t memory_bytes) {
  Message m;
  const auto name = j.at("type").get<std::string>();
  size_t type = 0;
  while (type < std::size(kTypes) && name != kTypes[type]) ++type;
  if (type == std::size(kTypes)) throw std::runtime_error("unknown type '" + name.substr(0, 40) + "'");
  m.type = static_cast<Type>(type);
  m.text = j.value("text", "");
  m.error = j.value("error", "");
  m.ns = j.value("ns", int64_t{0});
  const auto bounded = [](const json& list) -> const json& {
    if (list.size() > kJobsMax) throw std::runtime_error(std::to_string(list.size()) + " jobs");
    return list;
  };
  if (m.type == Type::kJobs)
    for (const json& one : bounded(j.at("jobs"))) m.jobs.push_back(job_from_json(one, memory_bytes));
  if (m.type == Type::kResults)
    for (const json& one : bounded(j.at("results"))) m.results.push_back(result_from_json(one));
  return m;
}

}  // namespace

void write_note(uint8_t* memory, size_t job, std::string_view step) {
  StepNote note{};
  note.job = static_cast<uint32_t>(job);
  std::memcpy(note.text, step.data(), std::min(step.size(), StepNote::kTextMax - 1));
  std::memcpy(memory, &note, sizeof note);
}

Step read_note(const uint8_t* memory, size_t jobs) {
  StepNote note{};
  std::memcpy(&note, memory, sizeof note);
  note.text[StepNote::kTextMax - 1] = '\0';
  return {note.job < jobs ? note.job : 0, note.text};
}

std::string encode(const Message& m) {
  json j = {{"type", kTypes[static_cast<size_t>(m.type)]}};
  if (!m.text.empty()) j["text"] = m.text;
  if (!m.error.empty()) j["error"] = m.error;
  if (m.ns != 0) j["ns"] = m.ns;
  if (m.type == Type::kJobs) {
    j["jobs"] = json::array();
    for (const JobText& t : m.jobs) j["jobs"].push_back(job_to_json(t));
  }
  if (m.type == Type::kResults) {
    j["results"] = json::array();
    for (const JobResult& r : m.results) j["results"].push_back(result_to_json(r));
  }
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

dispatch::Result<Message> decode(std::string_view text, int64_t memory_bytes) {
  try {
    return read(json::parse(text), memory_bytes);
  } catch (const std::exception& e) {
    return dispatch::corrupt("probe message: " + std::string(e.what()) + ": " +
                             std::string(text.substr(0, 80)));
  }
}

}  // namespace niche::evolve::probe
