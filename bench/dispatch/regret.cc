// regret: what it costs to know the winners at some shapes alone: time lost against the oracle by four ways
// of going from measured shapes to unseen ones, on a real stream of shapes with measured times of real
// kernels.
//
//   regret [--times FILE] [--trace FILE] [--json FILE]
//
// The times are record_regions': two independent ones a subject and length. Winners are chosen by the
// first; the second is what a call then takes. The oracle is, at each length, whoever the second says is
// fastest: noise makes it a little better than anything that could be deployed. Measured are the N lengths
// seen most often in the first tenth of the stream, and a grid of equal factors, 2^(1/2) or more, from the
// shortest to the longest (at most half of N);
// judged is the rest of the stream, calls of lengths that were not measured ("held out") apart from those
// that were.
//
//   exact     measured lengths their winner, others the library
//   nearest   the winner of the nearest measured length (by ratio), however far
//   pow2      one winner a power-of-two bucket: least total time over the measured lengths in it
//   niche     draw_niches: cells between neighbouring points, margin, no wide gaps; measured lengths their
//   winner
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "bench/dispatch/trace.h"
#include "dispatch/niche_map.h"

namespace {

using namespace niche;
using namespace niche::dispatch;

struct Times {
  std::string provenance;
  std::vector<std::string> names;
  std::vector<bool> library;
  struct Row {
    std::vector<double> first, second;  // µs
  };
  std::map<int64_t, Row> rows;  // by length
};

Result<Times> read_times(const std::string& file) {
  std::ifstream in(file);
  if (!in) return io_error("cannot read " + file);
  Times t;
  std::string line;
  for (int n = 1; std::getline(in, line); ++n) {
    if (!line.empty() && line[0] == '#') {
      t.provenance += line + "\n";
      continue;
    }
    std::istringstream cells(line);
    std::string cell;
    std::getline(cells, cell, ',');
    if (cell == "L") {
      while (std::getline(cells, cell, ',')) {
        t.library.push_back(cell.rfind("library:", 0) == 0);
        t.names.push_back(cell);
      }
      continue;
    }
    Times::Row& row = t.rows[std::atoll(cell.c_str())];
    while (std::getline(cells, cell, ',')) {
      double a = 0, b = 0;
      if (std::sscanf(cell.c_str(), "%lf;%lf", &a, &b) != 2)
        return corrupt(file + ": line " + std::to_string(n) + ": '" + cell + "' is not two times");
      row.first.push_back(a);
      row.second.push_back(b);
    }
    if (row.first.size() != t.names.size())
      return corrupt(file + ": line " + std::to_string(n) + " has " + std::to_string(row.first.size()) +
                     " subjects, not " + std::to_string(t.names.size()));
  }
  if (t.rows.empty() || t.library.empty() || !t.library[0])
    return corrupt(file + ": no times, or the first subject is not a library form");
  return t;
}

int best_of(const std::vector<double>& v) {
  return static_cast<int>(std::min_element(v.begin(), v.end()) - v.begin());
}
// The form of the library that a site would have chosen: the best over the measured lengths.
int best_library(const Times& t, const std::set<int64_t>& measured) {
  int best = 0;
  double least = 1e300;
  for (size_t k = 0; k < t.names.size(); ++k) {
    if (!t.library[k]) continue;
    double sum = 0;
    for (const int64_t l : measured) sum += t.rows.at(l).first[k];
    if (sum < least) least = sum, best = static_cast<int>(k);
  }
  return best;
}

using Policy = std::function<int(int64_t length)>;

Policy exact(const Times& t, const std::set<int64_t>& measured, int library) {
  return [&t, measured, library](int64_t l) {
    return measured.count(l) != 0 ? best_of(t.rows.at(l).first) : library;
  };
}
Policy nearest(const Times& t, const std::set<int64_t>& measured) {
  return [&t, measured](int64_t l) {
    int64_t at = *measured.begin();
    const auto distance = [l](int64_t m) {
      return std::abs(std::log(static_cast<double>(m) / static_cast<double>(l)));
    };
    for (const int64_t m : measured)
      if (distance(m) < distance(at)) at = m;
    return best_of(t.rows.at(at).first);
  };
}
Policy power_of_two(const Times& t, const std::set<int64_t>& measured, int library) {
  std::map<int, std::vector<double>> sums;
  for (const int64_t l : measured) {
    auto& sum = sums[63 - __builtin_clzll(static_cast<uint64_t>(l))];
    sum.resize(t.names.size());
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += t.rows.at(l).first[k];
  }
  return [sums, library](int64_t l) {
    const auto it = sums.find(63 - __builtin_clzll(static_cast<uint64_t>(l)));
    return it == sums.end() ? library : best_of(it->second);
  };
}

struct Niches {
  NicheMap map;
  std::vector<int> candidates;  // subject of each candidate
  std::map<int64_t, int> winners;
};
Result<Niches> draw(const Times& t, const std::set<int64_t>& measured, int library) {
  Niches n;
  n.candidates.push_back(library);
  for (size_t k = 0; k < t.names.size(); ++k)
    if (static_cast<int>(k) != library) n.candidates.push_back(static_cast<int>(k));
  std::vector<NicheCandidate> candidates;
  for (const int k : n.candidates) {
    Guard g;
    g.var[0] = {1, 1 << 20, 1};
    g.var_count = 1;
    candidates.push_back({t.library[static_cast<size_t>(k)], g});
  }
  std::vector<MeasuredPoint> points;
  for (const int64_t l : measured) {
    MeasuredPoint p;
    p.axes[0] = l;
    for (const int k : n.candidates) p.ns.push_back(1000 * t.rows.at(l).first[static_cast<size_t>(k)]);
    points.push_back(std::move(p));
  }
  auto map = draw_niches(1, points, candidates, NichePolicy{});
  if (!map) return map.status();
  n.map = *map;
  for (size_t i = 0; i < points.size(); ++i) n.winners[points[i].axes[0]] = map->winners[i];
  return n;
}
Policy niches(const Niches& n) {
  return [&n](int64_t l) {
    const auto it = n.winners.find(l);
    const int64_t axes[kMaxVarAxes] = {l};
    return n.candidates[static_cast<size_t>(it != n.winners.end() ? it->second : n.map.at(axes))];
  };
}

struct Regret {
  double all = 0, held_out = 0;  // time lost against the oracle, relative to the oracle's
  double worse = 0;              // share of calls that took over 3 % longer than the library
  double library_share = 0;      // share of calls that the library answered
};
Regret judge(const Times& t, const std::vector<int64_t>& stream, const std::set<int64_t>& measured,
             int library, const Policy& choose) {
  double taken[2] = {}, oracle[2] = {};
  Regret r;
  for (const int64_t l : stream) {
    const auto& us = t.rows.at(l).second;
    const int k = choose(l);
    const size_t known = measured.count(l);
    taken[known] += us[static_cast<size_t>(k)];
    oracle[known] += us[static_cast<size_t>(best_of(us))];
    r.worse += us[static_cast<size_t>(k)] > 1.03 * us[static_cast<size_t>(library)] ? 1 : 0;
    r.library_share += t.library[static_cast<size_t>(k)] ? 1 : 0;
  }
  r.all = (taken[0] + taken[1]) / (oracle[0] + oracle[1]) - 1;
  r.held_out = oracle[0] > 0 ? taken[0] / oracle[0] - 1 : 0;
  r.worse /= static_cast<double>(stream.size());
  r.library_share /= static_cast<double>(stream.size());
  return r;
}

int fail(const Status& s) {
  std::fprintf(stderr, "regret: %s\n", s.to_string().c_str());
  return 1;
}

int run(int argc, char** argv) {
  std::string times_file = NICHE_REGION_TIMES, trace_file = NICHE_TRACE_SAMPLE, json;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    std::string* into = a == "--times"   ? &times_file
                        : a == "--trace" ? &trace_file
                        : a == "--json"  ? &json
                                         : nullptr;
    if (into == nullptr || i + 1 >= argc) {
      std::fprintf(stderr, "usage: regret [--times FILE] [--trace FILE] [--json FILE]\n");
      return 2;
    }
    *into = argv[++i];
  }
  auto times = read_times(times_file);
  if (!times) return fail(times.status());
  auto trace = bench::read_prompt_lengths(trace_file);
  if (!trace) return fail(trace.status());
  std::vector<int64_t> stream;
  for (const int64_t l : *trace)
    if (times->rows.count(l) != 0) stream.push_back(l);
  if (stream.size() < 100) return fail(invalid("the times cover fewer than 100 calls of the trace"));
  std::printf("%s%zu of %zu calls have times, %zu distinct lengths of them\n", times->provenance.c_str(),
              stream.size(), trace->size(), std::set<int64_t>(stream.begin(), stream.end()).size());
  const size_t head = stream.size() / 10;
  std::map<int64_t, int> seen;
  for (size_t i = 0; i < head; ++i) ++seen[stream[i]];
  std::vector<std::pair<int, int64_t>> hottest;
  for (const auto& [l, n] : seen) hottest.push_back({-n, l});
  std::sort(hottest.begin(), hottest.end());
  const std::vector<int64_t> rest(stream.begin() + static_cast<long>(head), stream.end());

  nlohmann::json j;
  j["provenance"] = times->provenance;
  j["commit"] = NICHE_COMMIT;
  std::printf("\n%9s  %-8s %11s %11s %13s %13s %9s\n", "measured", "policy", "lost, all", "held out",
              ">3 % slower", "library's", "regions");
  for (const size_t budget : {8u, 16u, 32u, 64u, 128u}) {
    std::set<int64_t> measured;
    // The grid first: what a hot list has of short and long shapes is luck. At most half of the budget.
    const auto shortest = static_cast<double>(times->rows.begin()->first),
               longest = static_cast<double>(times->rows.rbegin()->first);
    const int steps = std::min(static_cast<int>(budget) / 2 - 1,
                               static_cast<int>(std::ceil(2 * std::log2(longest / shortest))));
    for (int i = 0; i <= steps; ++i) {
      auto at = times->rows.lower_bound(
          static_cast<int64_t>(shortest * std::pow(longest / shortest, i / static_cast<double>(steps))));
      if (at == times->rows.end()) --at;
      measured.insert(at->first);
    }
    for (const auto& [n, l] : hottest)
      if (measured.size() < budget) measured.insert(l);
    const int library = best_library(*times, measured);
    auto drawn = draw(*times, measured, library);
    if (!drawn) return fail(drawn.status());
    const std::pair<const char*, Policy> policies[] = {
        {"library", [library](int64_t) { return library; }},
        {"exact", exact(*times, measured, library)},
        {"nearest", nearest(*times, measured)},
        {"pow2", power_of_two(*times, measured, library)},
        {"niche", niches(*drawn)},
    };
    for (const auto& [name, policy] : policies) {
      const Regret r = judge(*times, rest, measured, library, policy);
      const bool ours = std::strcmp(name, "niche") == 0;
      std::printf("%9zu  %-8s %10.2f%% %10.2f%% %12.2f%% %12.1f%% %9s\n", measured.size(), name, 100 * r.all,
                  100 * r.held_out, 100 * r.worse, 100 * r.library_share,
                  ours ? std::to_string(drawn->map.regions.size()).c_str() : "");
      j["rows"].push_back({{"measured", measured.size()},
                           {"policy", name},
                           {"lost_all", r.all},
                           {"lost_held_out", r.held_out},
                           {"calls_over_3_percent_slower_than_library", r.worse},
                           {"library_share", r.library_share}});
    }
  }
  if (!json.empty()) {
    std::ofstream out(json);
    out << j.dump(1) << "\n";
    if (!out) return fail(io_error("cannot write " + json));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run(argc, argv); }
