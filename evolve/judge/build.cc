#include "evolve/judge/build.h"

#include <algorithm>
#include <set>

#include "dispatch/base/hash.h"
#include "evolve/toolchain/binary_check.h"

namespace niche::evolve::judge {
namespace {

constexpr size_t kUnitsInCompile = 32;

// Built up: g++ 12 at -O3 takes "k" + a temporary for an overlap (-Wrestrict, GCC bug 105651).
std::string unit_name(size_t i) { return std::string("k").append(std::to_string(i)); }

// Without symbol names: they are what tells two copies of one kernel apart.
uint64_t plan_hash(const dispatch::LaunchPlan& plan) {
  uint64_t h = dispatch::mix64(static_cast<uint64_t>(plan.workspace_bytes) + 1);
  const auto add = [&](int64_t v) { h = dispatch::mix64(h ^ static_cast<uint64_t>(v)) + 1; };
  add(plan.packed_bytes);
  for (const dispatch::Phase& p : plan.phases) {
    add(p.parallel_min_tasks);
    for (const dispatch::TaskFactor& f : p.factors) add(f.axis), add(f.divisor);
  }
  return h;
}

class Builder {
 public:
  Builder(const CppToolchain& toolchain, std::span<const Candidate> candidates, DefencesOff off)
      : toolchain_(toolchain), candidates_(candidates), off_(off) {
    build_.candidates.resize(candidates.size());
  }

  Build run() {
    for (auto& group : groups())
      for (size_t at = 0; at < group.size(); at += kUnitsInCompile)
        compile({group.begin() + static_cast<std::ptrdiff_t>(at),
                 group.begin() + static_cast<std::ptrdiff_t>(std::min(at + kUnitsInCompile, group.size()))});
    return std::move(build_);
  }

 private:
  // Same flags together; one that shares a symbol with another of its group goes to a later group.
  std::vector<std::vector<size_t>> groups() const {
    struct Group {
      std::vector<std::string> flags;
      std::set<std::string> symbols;
      std::vector<size_t> members;
    };
    std::vector<Group> groups;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const KernelSource& s = candidates_[i].source;
      const auto symbols = plan_symbols(s.plan);
      auto fits = [&](const Group& g) {
        return g.flags == s.flags && std::none_of(symbols.begin(), symbols.end(),
                                                  [&](const auto& y) { return g.symbols.count(y) != 0; });
      };
      auto g = std::find_if(groups.begin(), groups.end(), fits);
      if (g == groups.end()) g = groups.insert(groups.end(), {s.flags, {}, {}});
      g->symbols.insert(symbols.begin(), symbols.end());
      g->members.push_back(i);
    }
    std::vector<std::vector<size_t>> members;
    for (Group& g : groups) members.push_back(std::move(g.members));
    return members;
  }

  void compile(std::vector<size_t> members) {
    while (!members.empty()) {
      const dispatch::Status s = attempt(members);
      if (s.ok()) return;
      if (members.size() == 1) return refuse(members[0], s);
      if (s.code() == dispatch::Code::kIo) {
        for (size_t i : members) refuse(i, s);
        return;
      }
      // A diagnostic starts with the unit's name; where it does not, halves find the culprit.
      const auto named = std::find_if(members.begin(), members.end(), [&](size_t i) {
        const std::string name = unit_name(i);
        return s.message().compare(0, name.size(), name) == 0 && s.message().size() > name.size() &&
               (s.message()[name.size()] == ':' || s.message()[name.size()] == ' ');
      });
      if (named != members.end()) {
        refuse(*named, s);
        members.erase(named);
        continue;
      }
      const auto middle = members.begin() + static_cast<std::ptrdiff_t>(members.size() / 2);
      compile({members.begin(), middle});
      return compile({middle, members.end()});
    }
  }

  dispatch::Status attempt(const std::vector<size_t>& members) {
    std::vector<SourceUnit> units;
    std::vector<std::string> exports;
    // Moved out in front once, where all begin with it: 12 ms a copy.
    const std::string_view preamble = cpu_preamble();
    const bool shared = std::all_of(members.begin(), members.end(), [&](size_t i) {
      return candidates_[i].source.text.compare(0, preamble.size(), preamble) == 0;
    });
    for (size_t i : members) {
      const KernelSource& s = candidates_[i].source;
      units.push_back({unit_name(i), std::string_view(s.text).substr(shared ? preamble.size() : 0),
                       plan_symbols(s.plan)});
      exports.insert(exports.end(), units.back().exports.begin(), units.back().exports.end());
    }
    gate_ = Gate::kCompile;
    auto object = toolchain_.compile(units, candidates_[members[0]].source.flags,
                                     shared ? preamble : std::string_view());
    if (!object.ok()) return object.status();
    gate_ = Gate::kBinary;
    auto facts = check_binary(object->bytes, exports, off_);
    if (!facts.ok()) return facts.status();
    if (members.size() == 1)
      build_.candidates[members[0]].code_hash =
          facts->code_hash ^ plan_hash(candidates_[members[0]].source.plan);
    for (size_t i : members) {
      build_.candidates[i].object = static_cast<int>(build_.objects.size());
      build_.candidates[i].ms = object->ms / static_cast<double>(members.size());
    }
    build_.objects.push_back(std::move(object->bytes));
    return {};
  }

  void refuse(size_t i, const dispatch::Status& s) {
    BuiltCandidate& c = build_.candidates[i];
    c.gate = gate_;
    const std::string name = unit_name(i);
    c.reason = s.message();
    c.undecided = s.code() == dispatch::Code::kIo;
    // In the reader's words: the candidate's id, not the unit's number.
    for (size_t at = 0; (at = c.reason.find(name + ":", at)) != std::string::npos; at += 1)
      if (at == 0 || c.reason[at - 1] == '\n' || c.reason[at - 1] == ' ')
        c.reason.replace(at, name.size(), "kernel");
  }

  const CppToolchain& toolchain_;
  std::span<const Candidate> candidates_;
  DefencesOff off_;
  Build build_;
  Gate gate_ = Gate::kCompile;
};

}  // namespace

std::vector<std::string> plan_symbols(const dispatch::LaunchPlan& plan) {
  std::vector<std::string> symbols;
  const auto add = [&](const std::string& s) {
    if (!s.empty() && std::find(symbols.begin(), symbols.end(), s) == symbols.end()) symbols.push_back(s);
  };
  for (const dispatch::Phase& p : plan.phases) add(p.symbol);
  add(plan.pack_symbol);
  return symbols;
}

Build build_candidates(const CppToolchain& toolchain, std::span<const Candidate> candidates,
                       DefencesOff off) {
  return Builder(toolchain, candidates, off).run();
}

}  // namespace niche::evolve::judge
