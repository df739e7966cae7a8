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
// Points of one kernel: each gets the result.
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

// Adds what a recording says to `costs`; its header goes to *header, which it must equal unless that is empty.
Status read_recording(const std::string& path, std::string* header, Costs& costs) {
  std::ifstream in(path);
  std::string line;
  if (!in || !std::getline(in, line)) return dispatch::not_found("recording " + path + ": no header");
  if (!header->empty() && line != *header)
    return dispatch::corrupt("recording " + path + ": holds another space");
  *header = line;
  for (int number = 2; std::getline(in, line); ++number) {
    const size_t blank = line.rfind(' ');
    if (blank == std::string::npos)
      return dispatch::corrupt("recording " + path + ": line " + std::to_string(number));
    costs[line.substr(0, blank)].push_back(std::atof(line.c_str() + blank));
  }
  return {};
}

// Recordings that were measured apart, on one scale: the median ratio of the points they share is 1. Each
// process has measured the library by itself, and where two of its forms are equally good may have taken either.
dispatch::Result<Costs> read_on_one_scale(const std::vector<std::string>& paths, std::string* header) {
  Costs all;
  for (const std::string& path : paths) {
    Costs costs;
    NICHE_RETURN_IF_ERROR(read_recording(path, header, costs));
    std::vector<double> ratios;
    for (const auto& [key, v] : costs)
      if (const auto it = all.find(key); it != all.end() && median_of(v) > 0 && median_of(it->second) > 0)
        ratios.push_back(median_of(v) / median_of(it->second));
    const double scale = ratios.empty() ? 1 : median_of(std::move(ratios));
    for (auto& [key, v] : costs)
      for (double c : v) all[key].push_back(c / scale);
  }
  return all;
}

// All valid points in the grids' order, one class a kernel.
std::vector<Class> classes_of(const search::TemplateSpace& space, const dispatch::Definition& definition,
                              const CpuTarget& target) {
  std::unordered_map<std::string, size_t> by_source;
  std::vector<Class> classes;
  for (int f = 0; f < space.family_count(); ++f) {
    const auto& params = space.params(f);
    FamilyPoint p{f, Point(params.size(), 0)};
    do {
      if (space.valid(p)) {
        const auto [it, fresh] =
            by_source.emplace(render_point(space, definition, target, p).dedup_key, classes.size());
        if (fresh) classes.emplace_back();
        classes[it->second].push_back(p);
      }
    } while (search::next_point(params, &p.point));
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

  std::string header() const {
    const std::string line = recorded_header(space_, options_.name, options_.note);
    return line.substr(0, line.size() - 1);
  }

  Status open() {
    std::string expected = header();
    const Status read = read_recording(options_.path, &expected, done_);
    if (!read.ok() && read.code() != dispatch::Code::kNotFound) return read;
    out_.open(options_.path, std::ios::app);
    if (done_.empty() && out_.tellp() == 0) out_ << expected << '\n';
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

  // The best classes by what `known` holds of the rounds.
  std::vector<Class> best(const std::vector<std::vector<Class>>& batches, const Costs& known) const {
    std::vector<std::pair<double, const Class*>> ranked;
    for (const auto& batch : batches)
      for (const Class& c : batch) {
        const auto found = known.find(key_of(c.front()));
        if (found == known.end()) continue;
        std::vector<double> v = found->second;
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

  // One refinement's batches. Other neighbours in the compile each time: where a kernel lies in memory is a
  // part of the noise.
  dispatch::Result<std::vector<std::vector<Class>>> refinement(const std::vector<std::string>& rounds,
                                                               int number) const {
    std::string expected = header();
    auto known = read_on_one_scale(rounds, &expected);
    if (!known.ok()) return known.status();
    return refinement(*known, number);
  }
  std::vector<std::vector<Class>> refinement(const Costs& known, int number) const {
    std::vector<Class> again = best(batches(), known);
    search::Rng rng(options_.seed + 100 + static_cast<uint64_t>(number));
    rng.shuffle(again);
    return batches_of(std::move(again), static_cast<size_t>(options_.batch));
  }
  const Costs& done() const { return done_; }

  // Measures all until each has `times` measurements in this recording. False: asked to stop.
  dispatch::Result<bool> measure_all(const std::vector<std::vector<Class>>& batches, int times,
                                     const ProblemCosts& costs, Evaluator& evaluator, int64_t& count,
                                     int64_t total) {
    for (const auto& batch : batches) {
      auto went = measure(batch, times, costs, evaluator);
      if (!went.ok() || !*went) return went;
      if (options_.on_progress) options_.on_progress(++count, total);
    }
    return true;
  }

  void compile_all(const std::vector<std::vector<Class>>& batches, const CppToolchain& toolchain) const {
    int64_t count = 0;
    for (size_t b = batches.size(); b-- > 0;) {
      if (static_cast<int>(b % static_cast<size_t>(options_.parts)) != options_.part) continue;
      if (options_.keep_going && !options_.keep_going()) return;
      judge::build_candidates(toolchain, candidates(batches[b]));
      if (options_.on_progress)
        options_.on_progress(++count, static_cast<int64_t>(batches.size()) / options_.parts);
    }
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
    const auto went = recorder.measure_all(batches, round, costs, evaluator, count, total);
    if (!went.ok() || !*went) return went.ok() ? Status() : went.status();
    rng.shuffle(batches);
  }
  for (int r = 1; r <= options.refine_rounds; ++r) {
    const auto went = recorder.measure_all(recorder.refinement(recorder.done(), r), options.rounds + r, costs,
                                           evaluator, count, total);
    if (!went.ok() || !*went) return went.ok() ? Status() : went.status();
  }
  return {};
}

Status record_round(const search::TemplateSpace& space, const dispatch::Definition& definition,
                    const CpuTarget& target, const std::vector<SeenProblem>& problems, Evaluator& evaluator,
                    const RecordOptions& options, int round) {
  Recorder recorder(space, definition, target, options);
  NICHE_RETURN_IF_ERROR(recorder.open());
  if (auto baselines = evaluator.baselines(); !baselines.ok()) return baselines.status();
  auto batches = recorder.batches();
  search::Rng rng(options.seed + static_cast<uint64_t>(round));
  rng.shuffle(batches);
  int64_t count = 0;
  const auto went = recorder.measure_all(batches, 1, ProblemCosts(problems), evaluator, count,
                                         static_cast<int64_t>(batches.size()));
  return went.ok() ? Status() : went.status();
}

Status record_refinement(const search::TemplateSpace& space, const dispatch::Definition& definition,
                         const CpuTarget& target, const std::vector<SeenProblem>& problems,
                         Evaluator& evaluator, const RecordOptions& options,
                         const std::vector<std::string>& rounds, int refinement) {
  Recorder recorder(space, definition, target, options);
  const auto batches = recorder.refinement(rounds, refinement);
  if (!batches.ok()) return batches.status();
  NICHE_RETURN_IF_ERROR(recorder.open());
  if (auto baselines = evaluator.baselines(); !baselines.ok()) return baselines.status();
  int64_t count = 0;
  const auto went = recorder.measure_all(*batches, 1, ProblemCosts(problems), evaluator, count,
                                         static_cast<int64_t>(batches->size()));
  return went.ok() ? Status() : went.status();
}

int64_t count_sources(const search::TemplateSpace& space, const dispatch::Definition& definition,
                      const CpuTarget& target) {
  return static_cast<int64_t>(classes_of(space, definition, target).size());
}

Status compile_space(const search::TemplateSpace& space, const dispatch::Definition& definition,
                     const CpuTarget& target, const CppToolchain& toolchain, const RecordOptions& options) {
  const Recorder recorder(space, definition, target, options);
  recorder.compile_all(recorder.batches(), toolchain);
  return {};
}

Status compile_refinement(const search::TemplateSpace& space, const dispatch::Definition& definition,
                          const CpuTarget& target, const CppToolchain& toolchain,
                          const RecordOptions& options, const std::vector<std::string>& rounds,
                          int refinement) {
  const Recorder recorder(space, definition, target, options);
  const auto batches = recorder.refinement(rounds, refinement);
  if (!batches.ok()) return batches.status();
  recorder.compile_all(*batches, toolchain);
  return {};
}

Status pack_space(const std::vector<std::string>& recordings, const std::vector<std::string>& refinements,
                  int rounds, const std::string& to) {
  std::string header;
  auto all = read_on_one_scale(recordings, &header);
  if (!all.ok()) return all.status();
  auto fresh = read_on_one_scale(refinements, &header);
  if (!fresh.ok()) return fresh.status();
  std::map<std::vector<int>, double> points;  // by family, then indices
  for (auto& [key, costs] : *all) {
    std::istringstream words(key);
    std::vector<int> indices;
    for (int v = 0; words >> v;) indices.push_back(v);
    if (indices.empty() || !words.eof())
      return dispatch::corrupt("recording " + recordings[0] + ": '" + key + "'");
    // What was measured again for being good counts with its later measurements alone.
    auto& later = (*fresh)[key];
    if (static_cast<int>(costs.size()) > rounds)
      later.insert(later.end(), costs.begin() + rounds, costs.end());
    points[indices] = median_of(later.empty() ? costs : later);
  }
  std::ofstream out(to, std::ios::trunc);
  out << header << '\n';
  for (const auto& [key, cost] : points) out << recorded_line({key[0], {key.begin() + 1, key.end()}}, cost);
  out.flush();
  return out ? Status() : dispatch::io_error("packed recording " + to + ": cannot be written");
}

Status number_kernels(const search::TemplateSpace& space, const dispatch::Definition& definition,
                      const CpuTarget& target, const std::string& path) {
  std::string header;
  Costs costs;
  NICHE_RETURN_IF_ERROR(read_recording(path, &header, costs));
  auto recorded = RecordedSpace::load(path);
  if (!recorded.ok()) return recorded.status();
  // What each point's own line says: a kernel that was numbered before has one cost for all its points by now.
  std::unordered_map<std::string, double> own;
  for (const auto& [key, v] : costs) {
    const auto columns = static_cast<size_t>(std::count(key.begin(), key.end(), ' '));
    const bool numbered = columns > recorded->params(std::atoi(key.c_str())).size();
    const size_t blank = numbered ? key.rfind(' ') : key.size();
    own[key.substr(0, blank)] = numbered ? std::atof(key.c_str() + blank) : v.front();
  }
  std::unordered_map<std::string, int> numbers;
  std::string lines;
  size_t points = 0;
  for (int f = 0; f < recorded->family_count(); ++f) {
    const int family = space.find(recorded->family_name(f));
    if (family < 0) return dispatch::not_found(path + ": no family " + recorded->family_name(f) + " here");
    const auto& params = recorded->params(f);
    FamilyPoint p{f, Point(params.size(), 0)};
    do {
      if (recorded->valid(p)) {
        const auto here = point_from_json(space, recorded->family_name(f), point_to_json(*recorded, p));
        if (!here)
          return dispatch::not_found(path + ": point " + search::point_key(p) + " is not in the family");
        const auto [it, fresh] = numbers.emplace(render_point(space, definition, target, *here).dedup_key,
                                                 static_cast<int>(numbers.size()));
        lines += recorded_line(p, own.at(key_of(p)), it->second);
        ++points;
      }
    } while (search::next_point(params, &p.point));
  }
  if (numbers.size() == points) return {};
  std::ofstream out(path, std::ios::trunc);
  out << header << '\n' << lines;
  out.flush();
  return out ? Status() : dispatch::io_error("recorded space " + path + ": cannot be written");
}

}  // namespace niche::evolve::replay
