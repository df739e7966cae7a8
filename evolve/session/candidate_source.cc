#include "evolve/session/candidate_source.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "kernels_cache/sha256.h"

namespace niche::evolve {
namespace {

using json = nlohmann::ordered_json;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string sha256_hex(std::string_view text) { return kernels_cache::to_hex(kernels_cache::sha256(text)); }

// Everything of a source besides its text that makes a different kernel of it.
std::string plan_text(const KernelSource& s) {
  std::string t;
  for (const dispatch::Phase& phase : s.plan.phases) {
    t += "\nphase " + phase.symbol + ' ' + std::to_string(phase.parallel_min_tasks);
    for (const dispatch::TaskFactor& f : phase.factors)
      t += ' ' + std::to_string(f.axis) + '/' + std::to_string(f.divisor);
  }
  t += "\npack " + s.plan.pack_symbol + ' ' + std::to_string(s.plan.packed_bytes) + ' ' +
       std::to_string(s.plan.workspace_bytes);
  if (s.cuda != nullptr) {
    for (const dispatch::CudaPhase& phase : s.cuda->phases) {
      t += "\ncuda " + phase.symbol;
      for (int v : {phase.threads, phase.shared_bytes, phase.blocks_per_sm, phase.cluster,
                    static_cast<int>(phase.overlap)})
        t += ' ' + std::to_string(v);
    }
    t += "\nsm " + std::to_string(s.cuda->sm_count);
  }
  for (const std::string& flag : s.flags) t += "\nflag " + flag;
  for (int i = 0; i < s.limits.var_count; ++i) {
    const auto& r = s.limits.var[static_cast<size_t>(i)];
    t += "\nlimit " + std::to_string(r.lo) + ' ' + std::to_string(r.hi) + ' ' + std::to_string(r.multiple_of);
  }
  return t;
}

}  // namespace

std::string normalise_source(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool space = false;
  const auto put = [&](char c) {
    if (space && !out.empty() && is_word(out.back()) && is_word(c)) out += ' ';
    space = false;
    out += c;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (c == '/' && next == '/') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
      space = true;
    } else if (c == '/' && next == '*') {
      const size_t end = text.find("*/", i + 2);
      i = end == std::string_view::npos ? text.size() : end + 1;
      space = true;
    } else if (c == '"' || (c == '\'' && !(i > 0 && is_word(text[i - 1])))) {  // 1'000 is no literal's start
      put(c);
      while (i + 1 < text.size()) {
        out += text[++i];
        if (text[i] == '\\' && i + 1 < text.size())
          out += text[++i];
        else if (text[i] == c)
          break;
      }
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      space = true;
    } else {
      put(c);
    }
  }
  return out;
}

RenderedPoint render_point(const search::TemplateSpace& space, const dispatch::Definition& definition,
                           const CpuTarget& target, const search::FamilyPoint& at) {
  return hashed(space.at(at.family).render(definition, target, at.point, kFixedSuffix));
}

RenderedPoint hashed(KernelSource source) {
  RenderedPoint r;
  r.source = std::move(source);
  r.text_hash = sha256_hex(r.source.text);
  r.dedup_key = sha256_hex(normalise_source(r.source.text) + plan_text(r.source));
  return r;
}

std::string point_to_json(const search::SearchSpace& space, const search::FamilyPoint& at) {
  json j = json::object();
  const auto& params = space.params(at.family);
  for (size_t i = 0; i < params.size(); ++i)
    j[params[i].name] = params[i].values[static_cast<size_t>(at.point[i])];
  return j.dump();
}

std::optional<search::FamilyPoint> point_from_json(const search::SearchSpace& space,
                                                   const std::string& family, const std::string& text) {
  const json j = json::parse(text, nullptr, false);
  if (!j.is_object()) return std::nullopt;
  for (int f = 0; f < space.family_count(); ++f) {
    if (space.family_name(f) != family) continue;
    const auto& params = space.params(f);
    search::FamilyPoint at{f, Point(params.size(), 0)};
    for (const auto& [name, value] : j.items()) {
      const auto param =
          std::find_if(params.begin(), params.end(), [&](const Param& p) { return p.name == name; });
      if (param == params.end() || !value.is_number_integer()) return std::nullopt;
      const auto v = std::find(param->values.begin(), param->values.end(), value.get<int>());
      if (v == param->values.end()) return std::nullopt;
      at.point[static_cast<size_t>(param - params.begin())] = static_cast<int>(v - param->values.begin());
    }
    return at;
  }
  return std::nullopt;
}

}  // namespace niche::evolve
