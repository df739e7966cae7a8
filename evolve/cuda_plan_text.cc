#include "evolve/cuda_plan_text.h"

#include <cctype>
#include <charconv>
#include <limits>

#include "dispatch/published_kernel.h"

namespace niche::evolve {
namespace {

using dispatch::invalid;
using dispatch::Status;

constexpr int kThreadsMax = 1024;
constexpr int kBlocksPerSmMax = 32;
constexpr int64_t kGridMax = 2147483647;
constexpr size_t kGridFactorsMax = dispatch::BoundPhase::kFactorsMax;

bool is_name(std::string_view s) {
  if (s.empty() || std::isdigit(static_cast<unsigned char>(s[0])) != 0) return false;
  for (const char c : s)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') return false;
  return true;
}

// B*Lo/200
Status parse_grid(const dispatch::Definition& definition, std::string_view text, dispatch::CudaPhase* p) {
  if (text.empty()) return invalid("grid=: a product of axes, each with /DIVISOR or without, is needed");
  while (!text.empty()) {
    const size_t end = std::min(text.find('*'), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    dispatch::TaskFactor f;
    const size_t slash = one.find('/');
    if (slash != std::string_view::npos && (!parse_int(one.substr(slash + 1), f.divisor) || f.divisor < 1 ||
                                            f.divisor > std::numeric_limits<int32_t>::max()))
      return invalid("grid: bad divisor in '" + std::string(one) + "'");
    const std::string axis(one.substr(0, slash));
    f.axis = definition.schema().axis_index(axis);
    if (f.axis < 0) return invalid("unknown axis '" + axis + "' in grid");
    if (p->factors.size() == kGridFactorsMax)
      return invalid("grid: more than " + std::to_string(kGridFactorsMax) + " axes");
    p->factors.push_back(f);
  }
  return {};
}

struct Word {
  std::string_view name;
  int64_t lo, hi;
  int dispatch::CudaPhase::*field;
};

}  // namespace

bool parse_int(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

dispatch::Result<dispatch::CudaPhase> cuda_phase_from_words(const dispatch::Definition& definition,
                                                            const CudaTarget& target,
                                                            const std::vector<std::string>& words) {
  if (words.empty() || !is_name(words[0])) return invalid("phase: the name of a kernel is needed first");
  dispatch::CudaPhase p;
  p.symbol = words[0];
  const Word numbers[] = {{"threads", 1, kThreadsMax, &dispatch::CudaPhase::threads},
                          {"shared", 0, target.shared_bytes_per_block, &dispatch::CudaPhase::shared_bytes},
                          {"per_sm", 1, kBlocksPerSmMax, &dispatch::CudaPhase::blocks_per_sm},
                          {"cluster", 1, 8, &dispatch::CudaPhase::cluster}};
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& w = words[i];
    if (w == "overlap") {
      if (target.capability < 90) return invalid("overlap: " + target.arch + " has no such launches");
      p.overlap = true;
      continue;
    }
    const size_t equals = w.find('=');
    const std::string_view name = std::string_view(w).substr(0, equals);
    const std::string_view value =
        equals == std::string::npos ? std::string_view() : std::string_view(w).substr(equals + 1);
    if (name == "grid") {
      NICHE_RETURN_IF_ERROR(parse_grid(definition, value, &p));
      continue;
    }
    bool known = false;
    for (const Word& n : numbers) {
      if (n.name != name) continue;
      known = true;
      int64_t v = 0;
      if (!parse_int(value, v) || v < n.lo || v > n.hi)
        return invalid(w + ": " + std::to_string(n.lo) + " to " + std::to_string(n.hi) + " are possible");
      p.*n.field = static_cast<int>(v);
    }
    if (!known) return invalid("phase: unknown word '" + w + "'");
  }
  if ((p.cluster & (p.cluster - 1)) != 0 || (p.cluster > 1 && target.capability < 90))
    return invalid("cluster=" + std::to_string(p.cluster) + ": 1, and from sm_90 on 2, 4 or 8 are possible");
  if (p.blocks_per_sm > 0 && (int64_t{p.blocks_per_sm} * p.threads > target.threads_per_sm ||
                              int64_t{p.blocks_per_sm} * p.shared_bytes > target.shared_bytes_per_sm))
    return invalid("per_sm=" + std::to_string(p.blocks_per_sm) + ": so many blocks of " +
                   std::to_string(p.threads) + " threads and " + std::to_string(p.shared_bytes) +
                   " bytes do not fit a multiprocessor");
  return p;
}

std::string cuda_phase_to_words(const dispatch::Definition& definition, const dispatch::CudaPhase& p) {
  std::string grid;
  for (const dispatch::TaskFactor& f : p.factors)
    grid += (grid.empty() ? " grid=" : "*") + definition.schema().axes[static_cast<size_t>(f.axis)].name +
            (f.divisor != 1 ? '/' + std::to_string(f.divisor) : "");
  std::string text = p.symbol + grid + " threads=" + std::to_string(p.threads);
  if (p.shared_bytes > 0) text += " shared=" + std::to_string(p.shared_bytes);
  if (p.blocks_per_sm > 0) text += " per_sm=" + std::to_string(p.blocks_per_sm);
  if (p.cluster > 1) text += " cluster=" + std::to_string(p.cluster);
  return text + (p.overlap ? " overlap" : "");
}

Status check_cuda_plan(const dispatch::CudaLaunchPlan& plan, const std::string& file) {
  constexpr size_t kMost = dispatch::CudaLaunchPlan::kPhasesMax;
  if (plan.phases.empty() || plan.phases.size() > kMost)
    return invalid(file + ": " + std::to_string(plan.phases.size()) +
                   " lines `// niche: phase KERNEL grid=... threads=...`: 1 to " + std::to_string(kMost) +
                   " are possible");
  for (size_t i = 0; i < plan.phases.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (plan.phases[i].symbol == plan.phases[j].symbol)
        return invalid(file + ": two phases are named '" + plan.phases[i].symbol + "'");
  return {};
}

int64_t cuda_blocks_wanted(const dispatch::CudaPhase& phase, const int64_t* axes) {
  int64_t blocks = 1;
  for (const dispatch::TaskFactor& f : phase.factors) {
    const int64_t n = axes[f.axis] / f.divisor + (axes[f.axis] % f.divisor != 0 ? 1 : 0);
    if (n > 0 && blocks > kGridMax / n) return -1;
    blocks *= n;
  }
  return blocks + phase.cluster - 1 > kGridMax ? -1 : blocks;
}

dispatch::LaunchPlan tiles_of(const dispatch::CudaLaunchPlan& plan) {
  dispatch::LaunchPlan tiles;
  for (const dispatch::CudaPhase& p : plan.phases) tiles.phases.push_back({p.symbol, p.factors, 2});
  tiles.workspace_bytes = plan.workspace_bytes;
  return tiles;
}

}  // namespace niche::evolve
