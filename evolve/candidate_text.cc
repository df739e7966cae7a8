#include "evolve/candidate_text.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "evolve/cuda_plan_text.h"

namespace niche::evolve {
namespace {

using dispatch::Status;

constexpr std::string_view kMark = "// niche:";
constexpr int kDeviceAlignment =
    16;  // of a kernel that says none: what every allocator gives, and wide loads need

std::vector<std::string> words_of(std::string_view line) {
  std::istringstream in{std::string(line)};
  std::vector<std::string> words;
  for (std::string w; in >> w;) words.push_back(w);
  return words;
}

class Parser {
 public:
  Parser(const dispatch::Definition& definition, std::string file, std::string_view text,
         const CudaTarget* device)
      : definition_(definition), file_(std::move(file)), text_(text), device_(device) {}

  dispatch::Result<Candidate> parse() {
    KernelSource& s = candidate_.source;
    s.limits.alignment_bytes = device_ != nullptr ? kDeviceAlignment : 1;
    s.limits.var_count = static_cast<int>(definition_.var_axes().size());
    for (int i = 0; i < s.limits.var_count; ++i)
      s.limits.var[static_cast<size_t>(i)] = {1, device_ != nullptr ? INT32_MAX : INT64_MAX / 2, 1};
    s.kernel_name =
        definition_.schema().op + "." + std::string(dispatch::dtype_name(definition_.dtype())) + ".file";
    for (size_t at = 0; at < text_.size();) {
      ++line_;
      const size_t end = std::min(text_.find('\n', at), text_.size());
      const std::string_view line = text_.substr(at, end - at);
      if (line.substr(0, kMark.size()) == kMark)
        NICHE_RETURN_IF_ERROR(directive(words_of(line.substr(kMark.size()))));
      at = end + 1;
    }
    if (device_ != nullptr) {
      NICHE_RETURN_IF_ERROR(finish_device_plan());
    } else if (s.plan.phases.empty()) {
      NICHE_RETURN_IF_ERROR(discover_entry());
    }
    const std::string_view preamble = device_ != nullptr ? cuda_preamble() : cpu_preamble();
    s.text = (preamble_ ? std::string(preamble) : std::string()) + std::string(text_);
    candidate_.id = file_;
    return candidate_;
  }

 private:
  Status refuse(const std::string& what) const {
    return dispatch::invalid(file_ + " line " + std::to_string(line_) + ": " + what);
  }

  Status directive(const std::vector<std::string>& w) {
    KernelSource& s = candidate_.source;
    if (w.empty()) return refuse("an empty directive");
    const std::string& what = w[0];
    if (what == "preamble") return preamble_ = true, Status();
    if (what == "nondeterministic") return s.properties.deterministic = false, Status();
    if (what == "batch_variant") return s.properties.batch_invariant = false, Status();
    if (w.size() < 2) return refuse("'" + what + "' is not a directive, or lacks its value");
    if (what == "name") return s.kernel_name = w[1], Status();
    if (device_ != nullptr && (what == "flag" || what == "pack"))
      return refuse("'" + what + "': not for a kernel on a device");
    if (what == "flag") return s.flags.push_back(w[1]), Status();
    if (what == "phase") return phase(w);
    if (what == "limit") return limit(w[1]);
    int64_t n = 0;
    if (what == "pack") {
      if (w.size() != 3 || w[2].rfind("bytes=", 0) != 0 || !parse_int(w[2].substr(6), n) || n < 1)
        return refuse("pack: expected ENTRY bytes=N");
      s.plan.pack_symbol = w[1];
      s.plan.packed_bytes = n;
      return {};
    }
    if (!parse_int(w[1], n) || n < 0) return refuse("'" + what + "' expects a number, got '" + w[1] + "'");
    if (what == "workspace") return s.plan.workspace_bytes = n, Status();
    if (what == "align")
      return s.limits.alignment_bytes = static_cast<int>(std::min<int64_t>(n, 1 << 20)), Status();
    return refuse("unknown directive '" + what + "'");
  }

  Status phase(const std::vector<std::string>& w) {
    if (device_ != nullptr) {
      auto p = cuda_phase_from_words(definition_, *device_, {w.begin() + 1, w.end()});
      if (!p.ok()) return refuse(p.status().message());
      cuda_.phases.push_back(std::move(*p));
      return {};
    }
    dispatch::Phase p;
    p.symbol = w[1];
    for (size_t i = 2; i < w.size(); ++i) {
      if (w[i].rfind("parallel_min=", 0) == 0) {
        if (!parse_int(w[i].substr(13), p.parallel_min_tasks) || p.parallel_min_tasks < 1)
          return refuse("phase: '" + w[i] + "': a number of tasks, at least 1, is needed");
      } else if (w[i].rfind("tasks=", 0) == 0) {
        NICHE_RETURN_IF_ERROR(factors(w[i].substr(6), p));
      } else {
        return refuse("phase: unknown word '" + w[i] + "'");
      }
    }
    candidate_.source.plan.phases.push_back(std::move(p));
    return {};
  }

  // M/4*H
  Status factors(std::string_view text, dispatch::Phase& p) {
    while (!text.empty()) {
      const size_t end = std::min(text.find('*'), text.size());
      std::string_view one = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      dispatch::TaskFactor f;
      const size_t slash = one.find('/');
      if (slash != std::string_view::npos && (!parse_int(one.substr(slash + 1), f.divisor) || f.divisor < 1))
        return refuse("tasks: bad divisor in '" + std::string(one) + "'");
      const std::string axis(one.substr(0, slash));
      f.axis = definition_.schema().axis_index(axis);
      if (f.axis < 0) return refuse("unknown axis '" + axis + "' in tasks");
      p.factors.push_back(f);
    }
    return {};
  }

  // M=4..4096%4
  Status limit(const std::string& text) {
    const size_t equals = text.find('='), dots = text.find(".."),
                 percent = std::min(text.find('%'), text.size());
    if (equals == std::string::npos || dots == std::string::npos || dots < equals)
      return refuse("limit: expected AXIS=LO..HI or AXIS=LO..HI%MULTIPLE, got '" + text + "'");
    const std::string axis = text.substr(0, equals);
    const auto vars = definition_.var_axes();
    for (size_t i = 0; i < vars.size(); ++i) {
      if (definition_.schema().axes[static_cast<size_t>(vars[i])].name != axis) continue;
      auto& r = candidate_.source.limits.var[i];
      const bool ok =
          parse_int(std::string_view(text).substr(equals + 1, dots - equals - 1), r.lo) &&
          parse_int(std::string_view(text).substr(dots + 2, percent - dots - 2), r.hi) &&
          (percent == text.size() || parse_int(std::string_view(text).substr(percent + 1), r.multiple_of));
      return ok && r.multiple_of >= 1 ? Status() : refuse("limit: a bad number in '" + text + "'");
    }
    return refuse("limit: '" + axis + "' is not a variable axis");
  }

  Status finish_device_plan() {
    NICHE_RETURN_IF_ERROR(check_cuda_plan(cuda_, file_));
    KernelSource& s = candidate_.source;
    cuda_.workspace_bytes = s.plan.workspace_bytes;
    cuda_.sm_count = device_->sm_count;
    s.plan = tiles_of(cuda_);
    s.cuda = std::make_shared<const dispatch::CudaLaunchPlan>(cuda_);
    return {};
  }

  Status discover_entry() {
    std::vector<std::string> found;
    constexpr std::string_view kExtern = "extern \"C\" void ";
    for (size_t at = 0; (at = text_.find(kExtern, at)) != std::string_view::npos;) {
      at += kExtern.size();
      const size_t open = text_.find('(', at);
      if (open != std::string_view::npos) found.emplace_back(text_.substr(at, open - at));
    }
    if (found.size() != 1)
      return dispatch::invalid(
          file_ + ": " + std::to_string(found.size()) +
          " functions are declared `extern \"C\" void NAME(`; without a `// niche: phase NAME` line "
          "there must be exactly one");
    dispatch::Phase p;
    p.symbol = found[0];
    candidate_.source.plan.phases.push_back(std::move(p));
    return {};
  }

  const dispatch::Definition& definition_;
  std::string file_;
  std::string_view text_;
  const CudaTarget* device_;
  dispatch::CudaLaunchPlan cuda_;
  Candidate candidate_;
  int line_ = 0;
  bool preamble_ = false;
};

}  // namespace

dispatch::Result<Candidate> candidate_from_text(const dispatch::Definition& definition,
                                                const std::string& file_name, std::string_view text,
                                                const CudaTarget* device) {
  return Parser(definition, file_name, text, device).parse();
}

namespace {

bool word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

void replace_word(std::string& text, size_t from, const std::string& old_word, const std::string& new_word) {
  for (size_t at = from; (at = text.find(old_word, at)) != std::string::npos;) {
    const size_t end = at + old_word.size();
    if ((at > 0 && word(text[at - 1])) || (end < text.size() && word(text[end]))) {
      at = end;
      continue;
    }
    text.replace(at, old_word.size(), new_word);
    at += new_word.size();
  }
}

}  // namespace

void rename_entries(KernelSource& source, const std::string& suffix) {
  if (source.cuda != nullptr) return;  // a module of its own
  const size_t from = source.text.starts_with(cpu_preamble()) ? cpu_preamble().size() : 0;
  const auto rename = [&](std::string& symbol) {
    if (symbol.empty()) return;
    replace_word(source.text, from, symbol, symbol + suffix);
    symbol += suffix;
  };
  for (dispatch::Phase& p : source.plan.phases) rename(p.symbol);
  rename(source.plan.pack_symbol);
}

std::string candidate_to_text(const dispatch::Definition& definition, const KernelSource& s) {
  std::string out;
  const std::string_view prefix = s.cuda != nullptr ? cuda_preamble() : cpu_preamble();
  const bool preamble = s.text.starts_with(prefix);
  const auto line = [&](const std::string& what) { out += std::string(kMark) + ' ' + what + '\n'; };
  if (preamble) line("preamble");
  const auto& axes = definition.schema().axes;
  if (s.cuda != nullptr)
    for (const dispatch::CudaPhase& p : s.cuda->phases) line("phase " + cuda_phase_to_words(definition, p));
  for (const dispatch::Phase& p : s.cuda != nullptr ? std::vector<dispatch::Phase>() : s.plan.phases) {
    std::string tasks;
    for (const dispatch::TaskFactor& f : p.factors)
      tasks += (tasks.empty() ? " tasks=" : "*") + axes[static_cast<size_t>(f.axis)].name +
               (f.divisor != 1 ? '/' + std::to_string(f.divisor) : "");
    line("phase " + p.symbol + tasks +
         (p.parallel_min_tasks != 2 ? " parallel_min=" + std::to_string(p.parallel_min_tasks) : ""));
  }
  if (!s.plan.pack_symbol.empty())
    line("pack " + s.plan.pack_symbol + " bytes=" + std::to_string(s.plan.packed_bytes));
  if (s.plan.workspace_bytes > 0) line("workspace " + std::to_string(s.plan.workspace_bytes));
  if (s.limits.alignment_bytes != (s.cuda != nullptr ? kDeviceAlignment : 1))
    line("align " + std::to_string(s.limits.alignment_bytes));
  for (int i = 0; i < s.limits.var_count; ++i) {
    const auto& r = s.limits.var[static_cast<size_t>(i)];
    if (r.lo <= 1 && r.hi >= (s.cuda != nullptr ? INT32_MAX : INT64_MAX / 4) && r.multiple_of == 1) continue;
    line("limit " + axes[static_cast<size_t>(definition.var_axes()[static_cast<size_t>(i)])].name + '=' +
         std::to_string(r.lo) + ".." + std::to_string(r.hi) +
         (r.multiple_of != 1 ? '%' + std::to_string(r.multiple_of) : ""));
  }
  for (const std::string& f : s.flags) line("flag " + f);
  if (!s.properties.deterministic) line("nondeterministic");
  if (!s.properties.batch_invariant) line("batch_variant");
  // A text that was one of these already has its directives once.
  const std::string_view body = std::string_view(s.text).substr(preamble ? prefix.size() : 0);
  for (size_t at = 0; at < body.size();) {
    const size_t end = std::min(body.find('\n', at), body.size());
    if (!body.substr(at).starts_with(kMark)) out.append(body.substr(at, end - at)) += '\n';
    at = end + 1;
  }
  return out;
}

}  // namespace niche::evolve
