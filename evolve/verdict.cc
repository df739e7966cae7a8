#include "evolve/verdict.h"

#include <charconv>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace niche::evolve {
namespace {

using nlohmann::json;

constexpr const char* kGateNames[] = {"parse",       "duplicate",   "compile", "binary",  "smoke", "screen",
                                      "correctness", "determinism", "timing",  "confirm", "none"};
static_assert(std::size(kGateNames) == kGateCount + 1);
constexpr const char* kStatusNames[] = {"FASTER", "NOT_FASTER", "AMBIGUOUS", "REJECTED"};

template <size_t N>
int index_of(const char* const (&names)[N], const std::string& text) {
  for (size_t i = 0; i < N; ++i)
    if (text == names[i]) return static_cast<int>(i);
  return -1;
}

VerdictStatus parse_status(const std::string& text) {
  const int i = index_of(kStatusNames, text);
  if (i < 0) throw std::runtime_error("unknown status '" + text + "'");
  return static_cast<VerdictStatus>(i);
}

json guard_to_json(const dispatch::Guard& g) {
  json ranges = json::array();
  for (int i = 0; i < g.var_count; ++i) {
    const auto& r = g.var[static_cast<size_t>(i)];
    ranges.push_back({r.lo, r.hi, r.multiple_of});
  }
  return {{"var", ranges}, {"alignment_bytes", g.alignment_bytes}};
}

dispatch::Guard guard_from_json(const json& j) {
  dispatch::Guard g;
  g.alignment_bytes = j.at("alignment_bytes").get<int>();
  const json& ranges = j.at("var");
  if (ranges.size() > dispatch::kMaxVarAxes) throw std::runtime_error("guard has too many axes");
  g.var_count = static_cast<int>(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i)
    g.var[i] = {ranges[i].at(0).get<int64_t>(), ranges[i].at(1).get<int64_t>(),
                ranges[i].at(2).get<int64_t>()};
  return g;
}

json timing_to_json(const PointTiming& t) {
  return {{"var_axes", t.var_axes},
          {"fallback", t.fallback},
          {"fallback_ns", t.fallback_ns},
          {"kernel_ns", t.kernel_ns},
          {"speedup", t.speedup},
          {"ci_low", t.ci_low},
          {"ci_high", t.ci_high},
          {"cold_speedup", t.cold_speedup},
          {"pairs", t.pairs},
          {"status", verdict_name(t.status)}};
}

PointTiming timing_from_json(const json& j) {
  PointTiming t;
  t.var_axes = j.at("var_axes").get<std::vector<int64_t>>();
  t.fallback = j.at("fallback").get<std::string>();
  t.fallback_ns = j.at("fallback_ns").get<double>();
  t.kernel_ns = j.at("kernel_ns").get<double>();
  t.speedup = j.at("speedup").get<double>();
  t.ci_low = j.at("ci_low").get<double>();
  t.ci_high = j.at("ci_high").get<double>();
  t.cold_speedup = j.at("cold_speedup").get<double>();
  t.pairs = j.at("pairs").get<int>();
  t.status = parse_status(j.at("status").get<std::string>());
  return t;
}

// Beyond 2^53 many readers of JSON round: as text.
json failed_case_to_json(const FailedCase& c) {
  return {{"var_axes", c.var_axes},
          {"distribution", c.distribution},
          {"seed", std::to_string(c.seed)},
          {"constant_seed", std::to_string(c.constant_seed)}};
}
uint64_t seed_from_json(const json& j) {
  const std::string text = j.get<std::string>();
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::runtime_error("'" + text + "' is no seed");
  return seed;
}
FailedCase failed_case_from_json(const json& j) {
  return {j.at("var_axes").get<std::vector<int64_t>>(), j.at("distribution").get<int>(),
          seed_from_json(j.at("seed")), seed_from_json(j.at("constant_seed"))};
}

}  // namespace

const char* gate_name(Gate gate) { return kGateNames[static_cast<size_t>(gate)]; }
const char* verdict_name(VerdictStatus status) { return kStatusNames[static_cast<size_t>(status)]; }

std::string Verdict::to_json() const {
  json points = json::array();
  for (const PointTiming& t : timing) points.push_back(timing_to_json(t));
  json j = {{"status", verdict_name(status)},
            {"failed_gate", gate_name(failed_gate)},
            {"reason", reason},
            {"max_error", max_error},
            {"rms_error", rms_error},
            {"correctness_points", correctness_points},
            {"guard", guard_to_json(guard)},
            {"timing", points},
            {"e_value", e_value},
            {"compile_ms", compile_ms},
            {"evaluate_ms", evaluate_ms},
            {"sandbox", sandbox}};
  if (failed_case) j["failed_case"] = failed_case_to_json(*failed_case);
  if (digest) j["digest"] = json::parse(digest_to_json(*digest));
  // A compiler's message may quote bytes that are not UTF-8: replaced, since a verdict must always be
  // storable.
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

dispatch::Result<Verdict> Verdict::from_json(const std::string& text) {
  try {
    const json j = json::parse(text);
    Verdict v;
    v.status = parse_status(j.at("status").get<std::string>());
    const std::string gate = j.at("failed_gate").get<std::string>();
    const int i = index_of(kGateNames, gate);
    if (i < 0) return dispatch::corrupt("verdict: unknown gate '" + gate + "'");
    v.failed_gate = static_cast<Gate>(i);
    v.reason = j.at("reason").get<std::string>();
    // A null stands for an infinity or NaN: JSON has neither.
    const auto number = [&](const char* key) {
      return j.at(key).is_null() ? std::numeric_limits<double>::infinity() : j.at(key).get<double>();
    };
    v.max_error = number("max_error");
    v.rms_error = number("rms_error");
    v.correctness_points = j.at("correctness_points").get<int>();
    v.guard = guard_from_json(j.at("guard"));
    for (const json& t : j.at("timing")) v.timing.push_back(timing_from_json(t));
    v.e_value = number("e_value");
    v.compile_ms = number("compile_ms");
    v.evaluate_ms = number("evaluate_ms");
    v.sandbox = j.at("sandbox").get<std::string>();
    if (j.contains("failed_case")) v.failed_case = failed_case_from_json(j.at("failed_case"));
    if (j.contains("digest")) {
      auto digest = digest_from_json(j.at("digest").dump());
      if (!digest.ok()) return dispatch::corrupt("verdict: " + digest.status().message());
      v.digest = std::move(*digest);
    }
    return v;
  } catch (const std::exception& e) {
    return dispatch::corrupt(std::string("verdict: ") + e.what());
  }
}

}  // namespace niche::evolve
