#include "evolve/search/kernel_identity.h"

#include <algorithm>

#include "dispatch/base/hash.h"

namespace niche::evolve {
namespace {

// The C locale's classes, without a call.
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

void put_number(std::string& text, int64_t number) {
  text += ' ';
  text += std::to_string(number);
}

void put_division(std::string& text, std::span<const dispatch::TaskFactor> factors,
                  std::span<const ProblemAxes> problems) {
  if (problems.empty())
    for (const dispatch::TaskFactor& f : factors) put_number(text, f.axis), put_number(text, f.divisor);
  for (const ProblemAxes& axes : problems) {
    int64_t tasks = 1;
    for (const dispatch::TaskFactor& f : factors)
      tasks *= (axes[static_cast<size_t>(f.axis)] + f.divisor - 1) / f.divisor;
    put_number(text, tasks);
  }
}

void put_phases(std::string& text, const KernelSource& s, std::span<const ProblemAxes> problems) {
  for (const dispatch::Phase& phase : s.plan.phases) {
    text += "\nphase " + phase.symbol;
    put_division(text, phase.factors, problems);
    if (problems.empty()) put_number(text, phase.parallel_min_tasks);
    for (const ProblemAxes& axes : problems)
      text += phase.tasks(axes.data()) >= phase.parallel_min_tasks ? " split" : " whole";
  }
  text += "\npack " + s.plan.pack_symbol;
  put_number(text, s.plan.packed_bytes);
  if (problems.empty()) put_number(text, s.plan.workspace_bytes);
  if (s.cuda == nullptr) return;
  for (const dispatch::CudaPhase& phase : s.cuda->phases) {
    text += "\ncuda " + phase.symbol;
    put_division(text, phase.factors, problems);
    for (int v : {phase.threads, phase.shared_bytes, phase.blocks_per_sm, phase.cluster,
                  static_cast<int>(phase.overlap)})
      put_number(text, v);
  }
  text += "\nsm";
  put_number(text, s.cuda->sm_count);
}

void put_limits(std::string& text, const dispatch::Guard& limits, std::span<const int> var_axes,
                std::span<const ProblemAxes> problems) {
  text += "\nlimits";
  const auto count = std::min(static_cast<size_t>(limits.var_count), var_axes.size());
  if (problems.empty())
    for (size_t i = 0; i < count; ++i)
      put_number(text, limits.var[i].lo), put_number(text, limits.var[i].hi),
          put_number(text, limits.var[i].multiple_of);
  for (const ProblemAxes& axes : problems) {
    bool hold = true;
    for (size_t i = 0; i < count; ++i)
      hold = hold && limits.var[i].holds(axes[static_cast<size_t>(var_axes[i])]);
    text += hold ? " yes" : " no";
  }
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
    } else if (is_blank(c)) {
      space = true;
    } else {
      put(c);
    }
  }
  return out;
}

std::string launch_identity(const KernelSource& s, std::span<const int> var_axes,
                            std::span<const ProblemAxes> problems) {
  std::string text;
  put_phases(text, s, problems);
  for (const std::string& flag : s.flags) text += "\nflag " + flag;
  put_limits(text, s.limits, var_axes, problems);
  return text;
}

std::string kernel_identity(const KernelSource& source, std::span<const int> var_axes,
                            std::span<const ProblemAxes> problems) {
  return normalise_source(source.text) + launch_identity(source, var_axes, problems);
}

uint64_t kernel_number(const KernelSource& source, std::span<const int> var_axes,
                       std::span<const ProblemAxes> problems) {
  // What all generated sources begin with is not read: it is most of their text.
  const bool common = source.text.starts_with(cpu_preamble());
  const std::string_view text = std::string_view(source.text).substr(common ? cpu_preamble().size() : 0);
  return dispatch::hash_bytes(launch_identity(source, var_axes, problems), dispatch::hash_bytes(text));
}

}  // namespace niche::evolve
