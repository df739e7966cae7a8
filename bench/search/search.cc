// search: every policy on every recorded space: how far from the best after 25 to 200 evaluations, and how
// many evaluations to within 2 % of it. Rivals are the policies themselves, "random" first of all.
//
//   search [--json FILE] [--seeds N] [--batch N] [--policy NAME]... [SPACE...]
//
// Without SPACE, all files of bench/search/spaces but those of near/ and batch/ (`reuse`) and of tuning/ (below 2,000 points); a file in a folder
// "held_out" was not looked at while the defaults were tuned. Rows: {policy, space, held_out, budget, slowdown_mean, ci_low, ci_high,
// evals_to_1_02}; the interval is the 95 % normal one over seeds; evals_to_1_02 is the mean over seeds,
// censored at the number of points.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "evolve/replay/replay.h"

namespace {

namespace fs = std::filesystem;
using niche::evolve::replay::RecordedSpace;
using niche::evolve::replay::ReplayOptions;

constexpr int kBudgets[] = {25, 50, 100, 200};
constexpr double kNonePassed = 10;  // the slowdown that stands for "nothing right yet"

struct Options {
  std::string json;
  int seeds = 60, batch = 8;
  std::vector<std::string> policies, spaces;
};

struct Summary {
  double mean = 0, low = 0, high = 0;
};
Summary summarise(const std::vector<double>& v) {
  double sum = 0, squares = 0;
  for (double x : v) sum += x;
  const auto n = static_cast<double>(v.size());
  const double mean = sum / n;
  for (double x : v) squares += (x - mean) * (x - mean);
  const double half = n > 1 ? 1.96 * std::sqrt(squares / (n - 1) / n) : 0;
  return {mean, mean - half, mean + half};
}

int run(const Options& o) {
  nlohmann::json rows = nlohmann::json::array();
  std::map<std::string, double> log_evals;  // by policy, over held-out spaces
  int held_out_spaces = 0;
  for (const std::string& path : o.spaces) {
    auto space = RecordedSpace::load(path);
    if (!space.ok()) {
      std::fprintf(stderr, "%s\n", space.status().to_string().c_str());
      return 1;
    }
    const bool held_out = path.find("held_out") != std::string::npos;
    held_out_spaces += held_out;
    std::printf("\n%s%s: %lld points (%lld kernels), %lld pass, %lld within 2 %% of the best (%s)\n",
                space->name().c_str(), held_out ? " (held out)" : "", static_cast<long long>(space->points()),
                static_cast<long long>(space->kernels()), static_cast<long long>(space->passing_points()),
                static_cast<long long>(space->within(1.02)), space->note().c_str());
    std::printf("  %-14s", "policy");
    for (int b : kBudgets) std::printf("   after %3d", b);
    std::printf("   evals to 1.02x\n");
    for (const std::string& policy : o.policies) {
      std::vector<std::vector<double>> slowdown(std::size(kBudgets));
      std::vector<double> evals;
      for (int seed = 1; seed <= o.seeds; ++seed) {
        ReplayOptions r;
        r.policy = policy;
        r.seed = static_cast<uint64_t>(seed);
        r.batch = o.batch;
        r.evaluations = static_cast<int>(space->points());
        r.stop_within = 1.02;
        const auto to_target = niche::evolve::replay::replay(*space, r);
        if (!to_target.ok()) {
          std::fprintf(stderr, "%s\n", to_target.status().to_string().c_str());
          return 1;
        }
        evals.push_back(to_target->evaluations_to(1.02, space->optimum(), static_cast<int>(space->points())));
        // A run that reached its target early is as good at every later budget, or better: replay on to know.
        r.stop_within = 0;
        r.evaluations = kBudgets[std::size(kBudgets) - 1];
        const auto full = niche::evolve::replay::replay(*space, r);
        for (size_t b = 0; b < std::size(kBudgets); ++b)
          slowdown[b].push_back(full->slowdown_after(kBudgets[b], space->optimum(), kNonePassed));
      }
      const Summary e = summarise(evals);
      std::printf("  %-14s", policy.c_str());
      for (size_t b = 0; b < std::size(kBudgets); ++b) {
        const Summary s = summarise(slowdown[b]);
        std::printf("       %.3f", s.mean);
        rows.push_back({{"policy", policy},
                        {"space", space->name()},
                        {"held_out", held_out},
                        {"budget", kBudgets[b]},
                        {"slowdown_mean", s.mean},
                        {"ci_low", s.low},
                        {"ci_high", s.high},
                        {"evals_to_1_02", e.mean}});
      }
      std::printf("   %7.1f [%.1f, %.1f]\n", e.mean, e.low, e.high);
      std::fflush(stdout);
      if (held_out) log_evals[policy] += std::log(e.mean);
    }
  }
  if (held_out_spaces > 0 && log_evals.contains("random"))
    for (const auto& [policy, sum] : log_evals)
      std::printf("held out, geometric mean: %s needs %.2fx fewer evaluations to 1.02x than random\n",
                  policy.c_str(), std::exp((log_evals["random"] - sum) / held_out_spaces));
  if (!o.json.empty()) std::ofstream(o.json) << rows.dump(1) << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const bool has_value = i + 1 < argc;
    if (a == "--json" && has_value)
      o.json = argv[++i];
    else if (a == "--seeds" && has_value)
      o.seeds = std::max(1, std::atoi(argv[++i]));
    else if (a == "--batch" && has_value)
      o.batch = std::max(1, std::atoi(argv[++i]));
    else if (a == "--policy" && has_value)
      o.policies.push_back(argv[++i]);
    else if (a.starts_with("-"))
      return std::fprintf(stderr, "search: what is '%s'?\n", a.c_str()), 2;
    else
      o.spaces.push_back(a);
  }
  if (o.policies.empty()) {
    o.policies = niche::evolve::search::policy_names();
  }
  std::error_code ignored;
  if (o.spaces.empty())
    for (const auto& entry : fs::recursive_directory_iterator(NICHE_RECORDED_SPACES, ignored))
      if (const fs::path folder = entry.path().parent_path().filename();
          entry.path().extension() == ".space" && folder != "near" && folder != "batch" && folder != "tuning")
        o.spaces.push_back(entry.path().string());
  if (o.spaces.empty())
    return std::fprintf(stderr, "search: no recorded space in %s; bench/search/record.sh makes them\n",
                        NICHE_RECORDED_SPACES),
           1;
  std::sort(o.spaces.begin(), o.spaces.end());
  return run(o);
}
