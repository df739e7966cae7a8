#include "evolve/replay/space_recorder.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <unordered_map>

#include "evolve/judge/build.h"
#include "evolve/replay/recorded_space.h"
#include "evolve/search/rng.h"
#include "evolve/session/candidate_source.h"
#include "evolve/session/problem_costs.h"

namespace niche::evolve::replay {
namespace {

using dispatch::Status;
using search::FamilyPoint;
// Points of one source: each gets the result.
using Class = std::vector<FamilyPoint>;
using Costs = std::map<std::string, std::vector<double>>;  // by the line without its cost, in order

std::string key_of(const FamilyPoint& p) {
  const std::string line = recorded_line(p, 0);
  return line.substr(0, line.rfind(' '));
}

double median_of(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// What counts for a point: its later measurements where it was measured again for being good.
double settled(const std::vector<double>& costs, int rounds) {
  const auto first = static_cast<std::ptrdiff_t>(rounds);
  if (static_cast<std::ptrdiff_t>(costs.size()) > first)
    return median_of({costs.begin() + first, costs.end()});
  return median_of(costs);
}

// What of a source makes its time: the text and how it is cut into tasks; not, say, how much workspace it reserves.
std::string timing_key(const RenderedPoint& r) {
  std::string key = r.text_hash;
  for (const dispatch::Phase& phase : r.source.plan.phases) {
    key += ' ' + std::to_string(phase.parallel_min_tasks);
    for (const dispatch::TaskFactor& f : phase.factors)
      key += ' ' + std::to_string(f.axis) + '/' + std::to_string(f.divisor);
  }
  return key;
}

// All valid points in the grids' order, one class a timing key.
std::vector<Class> classes_of(const search::TemplateSpace& space, const dispatch::Definition& definition,
                              const CpuTarget& target) {
  std::unordered_map<std::string, size_t> by_source;
  std::vector<Class> classes;
  for (int f = 0; f < space.family_count(); ++f) {
    const auto& params = space.params(f);
    FamilyPoint p{f, Point(params.size(), 0)};
    for (;;) {
      if (space.valid(p)) {
        const auto [it, fresh] =
            by_source.emplace(timing_key(render_point(space, definition, target, p)), classes.size());
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

std::vector<std::vector<Class>> batches_of(std::vector<Class> classes, size_t size) {
  std::vector<std::vector<Class>> batches;
  for (Class& c : classes) {
    if (batches.empty() || batches.back().size() == size) batches.emplace_back();
    batches.back().push_back(std::move(c));
  }
  return batches;
}

class Recorder {
 public:
  Recorder(const search::TemplateSpace& space, const dispatch::Definition& definition,
           const CpuTarget& target, const RecordOptions& options)
      : space_(space), definition_(definition), target_(target), options_(options) {}

  std::vector<std::vector<Class>> batches() const {
    std::vector<Class> classes = classes_of(space_, definition_, target_);
    search::Rng rng(options_.seed);
    rng.shuffle(classes);
    if (static_cast<int64_t>(classes.size()) > options_.points_max)
      classes.resize(static_cast<size_t>(options_.points_max));
    return batches_of(std::move(classes), static_cast<size_t>(options_.batch));
  }

  std::vector<Candidate> candidates(const std::vector<Class>& batch) const {
    std::vector<Candidate> list;
    for (size_t i = 0; i < batch.size(); ++i) {
      const FamilyPoint& p = batch[i].front();
      list.push_back({search::point_key(p),
                      space_.at(p.family).render(definition_, target_, p.point, "_k" + std::to_string(i))});
    }
    return list;
  }

  Status open() {
    const std::string header = recorded_header(space_, options_.name, options_.note);
    std::ifstream in(options_.path);
    std::string line;
    if (in && std::getline(in, line)) {
      if (line + '\n' != header)
        return dispatch::corrupt("recording " + options_.path + ": holds another space");
      while (std::getline(in, line)) {
        const size_t blank = line.rfind(' ');
        if (blank != std::string::npos)
          done_[line.substr(0, blank)].push_back(std::atof(line.c_str() + blank));
      }
    }
    out_.open(options_.path, std::ios::app);
    if (done_.empty() && out_.tellp() == 0) out_ << header;
    return out_ ? Status() : dispatch::io_error("recording " + options_.path + ": cannot be written");
  }

  // Measures the batch's classes that have fewer than `times` measurements; all of the batch are compiled
  // together. False: asked to stop.
  dispatch::Result<bool> measure(const std::vector<Class>& batch, int times, const ProblemCosts& costs,
                                 Evaluator& evaluator) {
    if (options_.keep_going && !options_.keep_going()) return false;
    const auto wants = [&](const Class& c) {
      return static_cast<int>(done_[key_of(c.front())].size()) < times;
    };
    if (std::none_of(batch.begin(), batch.end(), wants)) return true;
    const auto verdicts = evaluator.screen(candidates(batch));
    for (size_t i = 0; i < verdicts.size() && i < batch.size(); ++i) {
      const Verdict& v = verdicts[i];
      const auto c = costs.of(v);
      if (v.status == VerdictStatus::kAmbiguous && !c) continue;  // no time for it: the next run will
      if (!wants(batch[i])) continue;
      const double cost = v.status != VerdictStatus::kRejected && c ? costs.weighted(*c) : 0;
      for (const FamilyPoint& p : batch[i]) {
        out_ << recorded_line(p, cost);
        done_[key_of(p)].push_back(cost);
      }
    }
    out_.flush();
    if (!out_) return dispatch::io_error("recording " + options_.path + ": cannot be written");
    return true;
  }

  // The best classes by what is known after all rounds.
  std::vector<Class> best(const std::vector<std::vector<Class>>& batches) {
    std::vector<std::pair<double, const Class*>> ranked;
    for (const auto& batch : batches)
      for (const Class& c : batch) {
        std::vector<double> v = done_[key_of(c.front())];
        if (static_cast<int>(v.size()) > options_.rounds) v.resize(static_cast<size_t>(options_.rounds));
        if (!v.empty() && median_of(v) > 0) ranked.emplace_back(median_of(v), &c);
      }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    ranked.resize(static_cast<size_t>(static_cast<double>(ranked.size()) * options_.refine_share));
    std::vector<Class> list;
    for (const auto& [cost, c] : ranked) list.push_back(*c);
    return list;
  }

 private:
  const search::TemplateSpace& space_;
  const dispatch::Definition& definition_;
  const CpuTarget& target_;
  const RecordOptions& options_;
  Costs done_;
  std::ofstream out_;
};

}  // namespace

Status record_space(const search::TemplateSpace& space, const dispatch::Definition& definition,
                    const CpuTarget& target, const std::vector<SeenProblem>& problems, Evaluator& evaluator,
                    const RecordOptions& options) {
  Recorder recorder(space, definition, target, options);
  NICHE_RETURN_IF_ERROR(recorder.open());
  if (auto baselines = evaluator.baselines(); !baselines.ok()) return baselines.status();
  const ProblemCosts costs(problems);
  auto batches = recorder.batches();
  search::Rng rng(options.seed + 1);
  const auto total = static_cast<int64_t>(batches.size()) * options.rounds;
  int64_t count = 0;
  for (int round = 1; round <= options.rounds; ++round) {
    for (const auto& batch : batches) {
      const auto went = recorder.measure(batch, round, costs, evaluator);
      if (!went.ok()) return went.status();
      if (!*went) return {};
      if (options.on_progress) options.on_progress(++count, total);
    }
    rng.shuffle(batches);
  }
  std::vector<Class> again = recorder.best(batches);
  for (int round = 1; round <= options.refine_rounds; ++round) {
    // Other neighbours in the compile each time: where a kernel lies in memory is a part of the noise.
    rng.shuffle(again);
    for (const auto& batch : batches_of(again, static_cast<size_t>(options.batch))) {
      const auto went = recorder.measure(batch, options.rounds + round, costs, evaluator);
      if (!went.ok()) return went.status();
      if (!*went) return {};
    }
  }
  return {};
}

int64_t count_sources(const search::TemplateSpace& space, const dispatch::Definition& definition,
                      const CpuTarget& target) {
  return static_cast<int64_t>(classes_of(space, definition, target).size());
}

Status compile_space(const search::TemplateSpace& space, const dispatch::Definition& definition,
                     const CpuTarget& target, const CppToolchain& toolchain, const RecordOptions& options) {
  const Recorder recorder(space, definition, target, options);
  const auto batches = recorder.batches();
  int64_t count = 0;
  // From the end on: the recording comes from the other side.
  for (auto batch = batches.rbegin(); batch != batches.rend(); ++batch) {
    if (options.keep_going && !options.keep_going()) return {};
    judge::build_candidates(toolchain, recorder.candidates(*batch));
    if (options.on_progress) options.on_progress(++count, static_cast<int64_t>(batches.size()));
  }
  return {};
}

Status pack_space(const std::string& recording, int rounds, const std::string& to) {
  std::ifstream in(recording);
  std::string header, line;
  if (!in || !std::getline(in, header)) return dispatch::not_found("recording " + recording + ": no header");
  std::map<std::vector<int>, std::vector<double>> points;  // family, then indices
  for (int number = 2; std::getline(in, line); ++number) {
    std::istringstream words(line);
    std::vector<double> values;
    for (double v = 0; words >> v;) values.push_back(v);
    if (values.size() < 2)
      return dispatch::corrupt("recording " + recording + ": line " + std::to_string(number));
    points[std::vector<int>(values.begin(), values.end() - 1)].push_back(values.back());
  }
  std::ofstream out(to, std::ios::trunc);
  out << header << '\n';
  for (const auto& [key, costs] : points)
    out << recorded_line({key[0], {key.begin() + 1, key.end()}}, settled(costs, rounds));
  out.flush();
  return out ? Status() : dispatch::io_error("packed recording " + to + ": cannot be written");
}

}  // namespace niche::evolve::replay
