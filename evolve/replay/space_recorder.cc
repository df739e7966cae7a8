#include "evolve/replay/space_recorder.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <unordered_map>

#include "evolve/replay/recorded_space.h"
#include "evolve/search/rng.h"
#include "evolve/session/candidate_source.h"
#include "evolve/session/problem_costs.h"

namespace niche::evolve::replay {
namespace {

using dispatch::Status;
using search::FamilyPoint;

// Valid points, one a source: {dedup key -> points}; every point of a class gets its result.
std::vector<std::vector<FamilyPoint>> classes_of(const search::TemplateSpace& space,
                                                 const dispatch::Definition& definition,
                                                 const CpuTarget& target) {
  std::unordered_map<std::string, size_t> by_source;
  std::vector<std::vector<FamilyPoint>> classes;
  for (int f = 0; f < space.family_count(); ++f) {
    const auto& params = space.params(f);
    FamilyPoint p{f, Point(params.size(), 0)};
    for (;;) {
      if (space.valid(p)) {
        const auto [it, fresh] =
            by_source.emplace(render_point(space, definition, target, p).dedup_key, classes.size());
        if (fresh) classes.emplace_back();
        classes[it->second].push_back(p);
      }
      size_t i = params.size();
      while (i > 0 && ++p.point[i - 1] == static_cast<int>(params[i - 1].values.size())) p.point[--i] = 0;
      if (i == 0) break;
    }
  }
  return classes;
}

}  // namespace

Status record_space(const search::TemplateSpace& space, const dispatch::Definition& definition,
                    const CpuTarget& target, const std::vector<SeenProblem>& problems, Evaluator& evaluator,
                    const RecordOptions& options) {
  const std::string header = recorded_header(space, options.name, options.note);
  std::map<std::string, int> done;  // measurements by "family indices"
  {
    std::ifstream in(options.path);
    std::string line;
    if (in && std::getline(in, line)) {
      if (line + '\n' != header)
        return dispatch::corrupt("recording " + options.path + ": holds another space");
      while (std::getline(in, line)) ++done[line.substr(0, line.rfind(' '))];
    }
  }
  std::ofstream out(options.path, std::ios::app);
  if (done.empty() && out.tellp() == 0) out << header;
  if (!out) return dispatch::io_error("recording " + options.path + ": cannot be written");
  if (auto baselines = evaluator.baselines(); !baselines.ok()) return baselines.status();

  const ProblemCosts costs(problems);
  auto classes = classes_of(space, definition, target);
  search::Rng rng(options.seed);
  rng.shuffle(classes);
  if (static_cast<int64_t>(classes.size()) > options.points_max)
    classes.resize(static_cast<size_t>(options.points_max));
  const auto total = static_cast<int64_t>(classes.size()) * options.rounds;
  int64_t count = 0;
  for (int round = 0; round < options.rounds; ++round) {
    std::vector<const std::vector<FamilyPoint>*> todo;
    for (const auto& points : classes) {
      const std::string key = recorded_line(points.front(), 0);
      if (done[key.substr(0, key.rfind(' '))] > round)
        ++count;
      else
        todo.push_back(&points);
    }
    rng.shuffle(todo);
    for (size_t at = 0; at < todo.size(); at += static_cast<size_t>(options.batch)) {
      if (options.keep_going && !options.keep_going()) return {};
      const size_t n = std::min(static_cast<size_t>(options.batch), todo.size() - at);
      std::vector<Candidate> candidates;
      for (size_t i = 0; i < n; ++i) {
        const FamilyPoint& p = todo[at + i]->front();
        candidates.push_back({search::point_key(p), space.at(p.family).render(definition, target, p.point,
                                                                              "_k" + std::to_string(i))});
      }
      const auto verdicts = evaluator.screen(candidates);
      for (size_t i = 0; i < verdicts.size() && i < n; ++i) {
        const Verdict& v = verdicts[i];
        const auto c = costs.of(v);
        if (v.status == VerdictStatus::kAmbiguous && !c) continue;  // no time for it: the next run will
        const double cost = v.status != VerdictStatus::kRejected && c ? costs.weighted(*c) : 0;
        for (const FamilyPoint& p : *todo[at + i]) out << recorded_line(p, cost);
      }
      out.flush();
      if (!out) return dispatch::io_error("recording " + options.path + ": cannot be written");
      count += static_cast<int64_t>(n);
      if (options.on_progress) options.on_progress(count, total);
    }
  }
  return {};
}

}  // namespace niche::evolve::replay
