// reuse: what it saves to know something, on the recorded spaces: evaluations to 1.05x and 1.02x of the best.
//
//   reuse [--json FILE] [--seeds N] [--budget N] [--spaces DIR]
//
// For every space of bench/search/spaces that has a neighbour, sessions of the default policy that begin with
//   seeds       the template families' own guesses (from scratch)
//   points      and the three best points of a session on a neighbouring problem (spaces/near/NAME.space)
//   neighbour   these points and all that the session evaluated, as a prior of the model, as a session takes both
//               from its store: reuse
//   batch       the same of a neighbour that differs in the batch alone (spaces/batch/NAME.space)
//   same        the same of an earlier session on this very problem: what is known is verified again
//   nothing     no guesses at all
//   pages       no guesses, but what the knowledge base retrieves (evolve/session/advice.h)
//   skills      no guesses, but the wins of sessions on the other operators, written to a skill book and
//               retrieved from it
//   both        pages and skills
// and random's draws. Geometric means over seeds, censored at the number of points; the intervals are those of
// their logarithms' 95 % normal ones. Sessions on other spaces have the same seed and --budget evaluations.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "evolve/replay/replay.h"
#include "evolve/session/advice.h"
#include "evolve/session/candidate_source.h"

namespace {

namespace fs = std::filesystem;
namespace evolve = niche::evolve;
using evolve::replay::RecordedSpace;
using evolve::replay::ReplayOptions;
using evolve::search::FamilyPoint;

constexpr int kPointsOfNeighbour = 3;  // WarmStartOptions::per_session

struct Space {
  std::string name;  // "held_out/conv1d"
  std::string op, arch;
  RecordedSpace recorded;
  std::unique_ptr<RecordedSpace> near, batch;
};

struct Options {
  std::string json, spaces = NICHE_RECORDED_SPACES;
  int seeds = 60, budget = 200;
};

int fail(const std::string& what) { return std::fprintf(stderr, "reuse: %s\n", what.c_str()), 1; }

// The same point by names, in another space of the operator.
std::vector<FamilyPoint> carried(const RecordedSpace& from, const RecordedSpace& to,
                                 const std::vector<std::pair<double, FamilyPoint>>& elites) {
  std::vector<FamilyPoint> points;
  for (const auto& [cost, p] : elites) {
    if (static_cast<int>(points.size()) >= kPointsOfNeighbour) break;
    const auto there =
        evolve::point_from_json(to, from.family_name(p.family), evolve::point_to_json(from, p));
    if (there && to.valid(*there)) points.push_back(*there);
  }
  return points;
}

// All that a session evaluated, in another space of the operator.
std::vector<evolve::search::PastResult> carried(const RecordedSpace& from, const RecordedSpace& to,
                                                const std::vector<evolve::search::PastResult>& evaluated) {
  std::vector<evolve::search::PastResult> past;
  for (const auto& r : evaluated) {
    const auto there = evolve::point_from_json(to, from.family_name(r.candidate.family),
                                               evolve::point_to_json(from, r.candidate));
    if (there) past.push_back({*there, r.cost});
  }
  return past;
}

niche::kb::Skill win_of(const Space& space, const std::pair<double, FamilyPoint>& best) {
  niche::kb::Skill s;
  s.kind = "win";
  s.op = space.op;
  s.arch = space.arch;
  s.gain = 1 / best.first;
  s.title = space.recorded.family_name(best.second.family);
  const auto& params = space.recorded.params(best.second.family);
  for (size_t i = 0; i < params.size(); ++i)
    s.title += ' ' + params[i].name + '=' +
               std::to_string(params[i].values[static_cast<size_t>(best.second.point[i])]);
  return s;
}

struct Tally {
  std::vector<double> to_1_05, to_1_02;
};
struct Mean {
  double mean = 0, low = 0, high = 0;
};
Mean geometric(const std::vector<double>& v) {
  double sum = 0, squares = 0;
  const auto n = static_cast<double>(v.size());
  for (double x : v) sum += std::log(x);
  for (double x : v) squares += std::pow(std::log(x) - sum / n, 2);
  const double half = n > 1 ? 1.96 * std::sqrt(squares / (n - 1) / n) : 0;
  return {std::exp(sum / n), std::exp(sum / n - half), std::exp(sum / n + half)};
}

// Points that are advised, by a book of skills that the other spaces' sessions filled.
std::vector<FamilyPoint> advised(const Space& space, niche::kb::Library* library,
                                 niche::kb::SkillBook* book) {
  std::vector<FamilyPoint> points;
  const auto advice = evolve::gather_advice(space.op, space.arch, library, book);
  for (const auto& a : evolve::advised_points(space.recorded, advice)) points.push_back(a.point);
  return points;
}

int run(const Options& o) {
  std::vector<Space> spaces;
  std::error_code ec;
  for (const auto& entry : fs::recursive_directory_iterator(o.spaces, ec)) {
    const std::string name = fs::relative(entry.path(), o.spaces).replace_extension().string();
    if (entry.path().extension() != ".space" || name.starts_with("near/") || name.starts_with("batch/"))
      continue;
    auto recorded = RecordedSpace::load(entry.path().string());
    if (!recorded.ok()) return fail(recorded.status().to_string());
    Space s{name, "", "", std::move(*recorded), nullptr, nullptr};
    s.op = s.recorded.name().substr(0, s.recorded.name().find('.'));
    s.arch = s.recorded.note().find("avx512") != std::string::npos ? "cpu.avx512" : "cpu.avx2";
    if (auto near = RecordedSpace::load(o.spaces + "/near/" + entry.path().filename().string()); near.ok())
      s.near = std::make_unique<RecordedSpace>(std::move(*near));
    if (auto batch = RecordedSpace::load(o.spaces + "/batch/" + entry.path().filename().string()); batch.ok())
      s.batch = std::make_unique<RecordedSpace>(std::move(*batch));
    if (s.near == nullptr && s.batch == nullptr) continue;
    spaces.push_back(std::move(s));
  }
  if (spaces.empty())
    return fail("no recorded space with a neighbour in " + o.spaces + "; bench/search/record.sh makes them");
  std::sort(spaces.begin(), spaces.end(), [](const Space& a, const Space& b) { return a.name < b.name; });
  auto library = niche::kb::Library::open();
  if (!library.ok()) return fail(library.status().to_string());
  const fs::path scratch = fs::temp_directory_path() / ("niche_reuse_" + std::to_string(getpid()));
  fs::create_directories(scratch);

  std::map<std::string, std::map<std::string, Tally>> tallies;  // by space, start
  for (int seed = 1; seed <= o.seeds; ++seed) {
    const auto explore = [&](const RecordedSpace& space) {
      ReplayOptions r;
      r.seed = static_cast<uint64_t>(seed);
      r.evaluations = o.budget;
      return std::move(*evolve::replay::replay(space, r));
    };
    std::vector<niche::kb::Skill> wins;
    std::map<std::string, evolve::replay::ReplayResult> earlier;  // by space
    for (const Space& s : spaces) {
      const auto& r = earlier.emplace(s.name, explore(s.recorded)).first->second;
      if (!r.elites.empty()) wins.push_back(win_of(s, r.elites.front()));
    }
    const std::string file = (scratch / (std::to_string(seed) + ".sqlite")).string();
    auto book = niche::kb::SkillBook::open(file);
    if (!book.ok()) return fail(book.status().to_string());
    for (const auto& w : wins)
      if (auto added = (*book)->add(w); !added.ok()) return fail(added.status().to_string());
    for (const Space& s : spaces) {
      const auto go = [&](const char* start, const char* policy, bool seeds, std::vector<FamilyPoint> warm,
                          std::vector<evolve::search::PastResult> past = {}) {
        ReplayOptions r;
        r.policy = policy;
        r.seed = static_cast<uint64_t>(seed) + 1'000'000;  // not the draws of the sessions before
        r.use_seeds = seeds;
        r.warm_start = std::move(warm);
        r.past = std::move(past);
        const auto censored = static_cast<int>(s.recorded.points());
        r.evaluations = censored;
        r.stop_within = 1.02;
        const auto result = evolve::replay::replay(s.recorded, r);
        Tally& t = tallies[s.name][start];
        t.to_1_05.push_back(result->evaluations_to(1.05, s.recorded.optimum(), censored));
        t.to_1_02.push_back(result->evaluations_to(1.02, s.recorded.optimum(), censored));
      };
      go("random", "random", false, {});
      go("seeds", "default", true, {});
      const auto reuse = [&](const char* start, const RecordedSpace& of,
                             const evolve::replay::ReplayResult& before) {
        go(start, "default", true, carried(of, s.recorded, before.elites),
           carried(of, s.recorded, before.evaluated));
      };
      if (s.near) {
        const auto before = explore(*s.near);
        go("points", "default", true, carried(*s.near, s.recorded, before.elites));
        reuse("neighbour", *s.near, before);
      }
      if (s.batch) reuse("batch", *s.batch, explore(*s.batch));
      reuse("same", s.recorded, earlier.at(s.name));
      go("nothing", "default", false, {});
      go("pages", "default", false, advised(s, library->get(), nullptr));
      go("skills", "default", false, advised(s, nullptr, book->get()));
      go("both", "default", false, advised(s, library->get(), book->get()));
    }
  }
  fs::remove_all(scratch, ec);

  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [space, starts] : tallies) {
    std::printf("\n%s\n", space.c_str());
    for (const auto& [start, t] : starts) {
      const Mean a = geometric(t.to_1_05), b = geometric(t.to_1_02);
      std::printf("  %-10s  to 1.05x %7.1f [%.1f, %.1f]   to 1.02x %7.1f [%.1f, %.1f]\n", start.c_str(),
                  a.mean, a.low, a.high, b.mean, b.low, b.high);
      rows.push_back({{"space", space},
                      {"start", start},
                      {"seeds", o.seeds},
                      {"evals_to_1_05", a.mean},
                      {"evals_to_1_05_ci", {a.low, a.high}},
                      {"evals_to_1_02", b.mean},
                      {"evals_to_1_02_ci", {b.low, b.high}}});
    }
    for (const char* past : {"neighbour", "batch", "same"})
      if (starts.contains(past))
        std::printf("  %s: reuse needs %.1fx fewer to 1.05x than from scratch, %.1fx fewer than random\n",
                    past,
                    geometric(starts.at("seeds").to_1_05).mean / geometric(starts.at(past).to_1_05).mean,
                    geometric(starts.at("random").to_1_05).mean / geometric(starts.at(past).to_1_05).mean);
  }
  if (!o.json.empty()) std::ofstream(o.json) << rows.dump(1) << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string a = argv[i], v = argv[i + 1];
    if (a == "--json")
      o.json = v;
    else if (a == "--seeds")
      o.seeds = std::max(1, std::atoi(v.c_str()));
    else if (a == "--budget")
      o.budget = std::max(1, std::atoi(v.c_str()));
    else if (a == "--spaces")
      o.spaces = v;
    else
      return fail("what is '" + a + "'?") + 1;
  }
  return run(o);
}
