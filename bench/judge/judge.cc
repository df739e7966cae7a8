// judge: can the judge be believed? A library form against itself must not be FASTER (under load, in at least
// 2,000 trials), one made 5 % slower must be seen to be so, no cheat of tests/cheats may pass, and honest
// kernels must: of every template family its best point of a quick screen, and three random ones.
//
//   judge [--json FILE] [--aa N] [--no-load] [--part aa|cheats|honest] [--family NAME] [--shard I/N]
//
// A trial is judged as a session judges: confirmed, and made anew with more pairs where it found neither way.
// --shard: every N-th A/A operator and template family, from the I-th on, for a machine with cores to spare.
//
// {aa_trials, aa_false_faster, planted_slow_5pct_detected, cheats_total, cheats_caught, honest_total,
// honest_passed} and what stands behind them. An honest kernel passes when no gate before the timing ones
// refuses it: a tie is no disgrace.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/judge/self_trials.h"
#include "dispatch/devices/cpu/cpu_info.h"
#include "evolve/search/rng.h"
#include "evolve/search/template_space.h"
#include "evolve/session/session.h"
#include "runtime/torch/worker.h"
#include "tests/cheats/cheats.h"
#include "tests/cheats/load.h"

namespace {

using namespace niche;  // NOLINT: a program of one file
using evolve::Verdict;
using evolve::VerdictStatus;
using json = nlohmann::ordered_json;

struct Options {
  std::string json, family, part;
  int aa = 2000;
  int shard = 0, shards = 1;
  bool load = true;
  bool mine(int index) const { return index % shards == shard; }
};

// A Definition and a problem for each operator, small enough for some 100 judgements a minute.
struct Case {
  const char *op, *dtype;
  std::vector<std::pair<std::string, int64_t>> constants;
  std::vector<int64_t> vars;
};
const Case kCases[] = {
    {"rms_norm", "f32", {{"N", 1024}}, {16}},
    {"fused_add_rms_norm", "f32", {{"N", 1024}}, {16}},
    {"fused_add_rms_norm_inplace", "f32", {{"N", 1024}}, {16}},
    {"layer_norm", "f32", {{"N", 1024}}, {16}},
    {"rms_norm_backward", "f32", {{"N", 512}}, {64}},
    {"silu_mul", "f32", {{"N", 2048}}, {16}},
    {"softmax", "f32", {{"N", 512}}, {32}},
    {"embedding_bag", "f32", {{"V", 2000}, {"D", 64}}, {800, 40}},
    {"selective_state_update", "f32", {{"D", 256}, {"S", 16}}, {4}},
    {"conv1d", "f32", {{"Ci", 32}, {"Co", 32}, {"K", 3}}, {2, 100}},
    {"optimized_fm", "f32", {{"N", 24}, {"D", 64}, {"K", 160}}, {2}},
    {"pffn", "f32", {{"N", 50}, {"D", 32}, {"K", 64}}, {2}},
    {"map_id", "i64", {{"T", 4000}}, {2000}},
    {"mbdt", "f32", {{"F", 8}, {"K", 8}}, {512}},
    {"batch_event_truncate", "i64", {{"F", 3}}, {64, 4000, 8000}},
    {"ikbo_linear_compression", "f32", {{"M", 54}, {"N", 32}, {"Kc", 108}, {"Ku", 147}}, {20, 2}},
};

void save(const Options& o, const json& out) {
  if (!o.json.empty()) std::ofstream(o.json) << out.dump(1) << '\n';
}

void self_trials(const Options& o, const dispatch::OpRegistry& ops, json& out) {
  const evolve::cheats::Load load(o.load ? evolve::cheats::usable_cores() : 0);
  out["aa_trials"] = out["aa_false_faster"] = 0;
  out["planted_slow_5pct_detected"] = false;
  int trials = 0, faster = 0, planted = 0, detected = 0, planted_faster = 0;
  int again = 0, first_faster = 0, undecided = 0;
  const char* const names[] = {"rms_norm", "silu_mul", "layer_norm", "softmax"};
  int index = 0;
  for (const char* name : names) {
    if (!o.mine(index++)) continue;
    const Case& c = *std::find_if(std::begin(kCases), std::end(kCases),
                                  [&](const Case& k) { return k.op == std::string(name); });
    auto op = ops.find_shared(c.op);
    evolve::EvaluatorSpec spec;
    spec.op = op;
    spec.definition = *dispatch::Definition::make(op->schema(), *dispatch::parse_dtype(c.dtype), c.constants);
    spec.problems = {{{4}, 1, false}};  // a few microseconds: 2,000 trials in two minutes
    auto t = bench::SelfTrials::make(spec, torch_child_start);
    if (!t.ok()) {
      std::fprintf(stderr, "judge: %s\n", t.status().to_string().c_str());
      continue;
    }
    const int n = o.aa / static_cast<int>(std::size(names)), slow = std::max(1, n / 25);
    for (int i = 0; i < n + slow; ++i) {
      auto v = (*t)->run(i < n ? 0 : 0.05, static_cast<uint64_t>(i) + 1);
      if (!v.ok()) {
        std::fprintf(stderr, "judge: %s: %s\n", (*t)->name().c_str(), v.status().to_string().c_str());
        break;
      }
      if (i < n) {
        ++trials;
        faster += v->status == VerdictStatus::kFaster;
        again += v->judgements > 1;
        first_faster += v->first_faster > 0;
        undecided += v->status == VerdictStatus::kAmbiguous;
      } else {
        ++planted;
        detected += v->status == VerdictStatus::kNotFaster;
        planted_faster += v->status == VerdictStatus::kFaster;
      }
    }
    std::printf(
        "A/A %s: %d false FASTER of %d so far (%d before confirmation, %d judged again); 5 %% slower: %d of "
        "%d seen\n",
        (*t)->name().c_str(), faster, trials, first_faster, again, detected, planted);
    std::fflush(stdout);
    out["aa_trials"] = trials;
    out["aa_false_faster"] = faster;
    out["aa_faster_before_confirmation"] = first_faster;
    out["aa_judged_again"] = again;
    out["aa_undecided"] = undecided;
    out["planted_slow_5pct_detected"] = planted > 0 && planted_faster == 0 && detected * 100 >= 95 * planted;
    out["planted_trials"] = planted;
    out["planted_detected"] = detected;
    out["aa_under_load"] = o.load;
    save(o, out);
  }
}

void cheats(json& out) {
  int total = 0, caught = 0;
  json missed = json::array();
  for (const auto& cheat : evolve::cheats::all()) {
    auto e = evolve::make_evaluator(evolve::cheats::spec());
    if (!e.ok()) continue;
    ++total;
    if ((*e)->judge(evolve::cheats::candidate(cheat)).verdict.faster())
      missed.push_back(cheat.name);
    else
      ++caught;
  }
  std::printf("cheats: %d of %d caught\n", caught, total);
  out["cheats_total"] = total;
  out["cheats_caught"] = caught;
  out["cheats_missed"] = missed;
}

void honest(const Options& o, const dispatch::OpRegistry& ops, const evolve::FamilyRegistry& families,
            json& out) {
  int total = 0, passed = 0, faster = 0;
  json refused = json::array();
  const evolve::CpuTarget target = evolve::detect_target(1);
  int index = 0;
  for (const Case& c : kCases) {
    auto op = ops.find_shared(c.op);
    if (!op) continue;
    auto definition = dispatch::Definition::make(op->schema(), *dispatch::parse_dtype(c.dtype), c.constants);
    if (!definition.ok()) {
      std::fprintf(stderr, "judge: %s\n", definition.status().to_string().c_str());
      continue;
    }
    for (const evolve::TemplateFamily* family : families.for_op(c.op)) {
      if (!o.family.empty() && family->name() != o.family) continue;
      if (!o.mine(index++)) continue;
      std::vector<evolve::Point> points = family->seeds(**definition, target);
      if (points.empty()) continue;
      if (points.size() > 4) points.resize(4);
      // Random valid points; a family with few is taken as it is.
      evolve::search::Rng rng(11);
      std::vector<evolve::Point> random;
      for (int tries = 0; tries < 20'000 && random.size() < 3; ++tries) {
        evolve::Point p;
        for (const evolve::Param& q : family->params())
          p.push_back(static_cast<int>(rng.below(q.values.size())));
        if (family->valid(**definition, target, p) &&
            std::find(random.begin(), random.end(), p) == random.end())
          random.push_back(p);
      }
      evolve::EvaluatorOptions options;
      options.child_start = torch_child_start;
      evolve::EvaluatorSpec spec{op, *definition, {{c.vars, 1, false}}, target};
      auto e = evolve::make_evaluator(spec, options);
      if (!e.ok()) continue;
      std::vector<evolve::Candidate> candidates;
      for (const evolve::Point& p : points)
        candidates.push_back({family->describe(p), family->render(**definition, target, p,
                                                                  "_k" + std::to_string(candidates.size()))});
      const auto verdicts = (*e)->screen(candidates);
      size_t best = 0;
      double best_ns = 0;
      for (size_t i = 0; i < verdicts.size(); ++i)
        if (!verdicts[i].timing.empty() && (best_ns == 0 || verdicts[i].timing[0].kernel_ns < best_ns))
          best = i, best_ns = verdicts[i].timing[0].kernel_ns;
      random.insert(random.begin(), points[best]);
      for (const evolve::Point& p : random) {
        const Verdict v =
            (*e)->judge({family->describe(p), family->render(**definition, target, p, "_k")}).verdict;
        if (v.failed_gate == evolve::Gate::kDuplicate) continue;  // the same machine code as one before
        ++total;
        faster += v.faster();
        const bool ok = v.status != VerdictStatus::kRejected;
        passed += ok;
        if (!ok)
          refused.push_back({{"family", family->name()},
                             {"point", family->describe(p)},
                             {"gate", evolve::gate_name(v.failed_gate)},
                             {"reason", v.reason}});
      }
      std::printf("honest %-32s %d of %d passed so far, %d FASTER\n", family->name().c_str(), passed, total,
                  faster);
      std::fflush(stdout);
      out["honest_total"] = total;
      out["honest_passed"] = passed;
      out["honest_faster"] = faster;
      out["honest_refused"] = refused;
      save(o, out);  // long: what there is counts
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const bool value = i + 1 < argc;
    if (a == "--json" && value)
      o.json = argv[++i];
    else if (a == "--aa" && value)
      o.aa = std::max(4, std::atoi(argv[++i]));
    else if (a == "--family" && value)
      o.family = argv[++i];
    else if (a == "--no-load")
      o.load = false;
    else if (a == "--part" && value)
      o.part = argv[++i];
    else if (a == "--shard" && value && std::sscanf(argv[i + 1], "%d/%d", &o.shard, &o.shards) == 2 &&
             o.shards > 0)
      ++i;
    else
      return std::fprintf(stderr, "judge: what is '%s'?\n", a.c_str()), 2;
  }
  dispatch::OpRegistry ops;
  evolve::FamilyRegistry families;
  if (auto s = register_everything(&ops, &families); !s.ok()) {
    std::fprintf(stderr, "judge: %s\n", s.to_string().c_str());
    return 1;
  }
  json out;
  out["machine"] = dispatch::CpuInfo::detect().model_name;
  const auto wanted = [&](const char* part) { return o.part.empty() || o.part == part; };
  bool good = true;
  if (wanted("aa")) {
    self_trials(o, ops, out);
    good = out["aa_false_faster"].get<int>() * 100 <= out["aa_trials"].get<int>() &&
           out["planted_slow_5pct_detected"].get<bool>();
  }
  if (wanted("cheats")) {
    cheats(out);
    good = good && out["cheats_caught"] == out["cheats_total"];
  }
  save(o, out);
  if (wanted("honest")) {
    honest(o, ops, families, out);
    good = good && out["honest_passed"] == out["honest_total"];
  }
  save(o, out);
  std::printf("%s\n", out.dump().c_str());
  return good ? 0 : 1;
}
