// record_space: measures every point of an operator's template families at some problems and writes a
// recorded space for `search`. Restartable; a point costs some 60 ms a round.
//
//   record_space --out FILE --op NAME [--dtype f32] --const N=1024... [--attr has_b=1...] --problem
//   M=32[,B=4][:weight]...
//                [--family NAME...] [--rounds 3] [--pairs 25] [--points 20000] [--batch 8] [--cold]
//                [--threads 1] [--seconds S] [--compiler FILE --scratch DIR [--compile-only [--part I/N]]]
//                [--isa avx2] [--only NAME=VALUE]... [--round R | --refine R --from RECORDING...] [--count]
//                [--number SPACE]
//   record_space --pack RECORDING... [--refined RECORDING...] --rounds 3 --out FILE
//
// --compile-only walks through what a recording will compile and measures nothing: for a compiler that
// remembers. --round and --refine do one pass of a recording, so that passes can run side by side, each on its
// own core and into its own file; --pack puts them together. --number writes into a packed space
// which of its points are one kernel. --isa and --only leave points out; the space's
// name says so.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sstream>

#include "bench/search/restricted_family.h"
#include "dispatch/base/clock.h"
#include "dispatch/devices/cpu/cpu_info.h"
#include "evolve/replay/space_recorder.h"
#include "evolve/session/candidate_source.h"
#include "evolve/session/session.h"
#include "runtime/torch/worker.h"

namespace {

using namespace niche;  // NOLINT: a program of one file
using evolve::SeenProblem;

std::pair<std::string, double> assignment(const std::string& text) {
  const size_t eq = text.find('=');
  return {text.substr(0, eq), eq == std::string::npos ? 0 : std::atof(text.c_str() + eq + 1)};
}

int fail(const std::string& what) {
  std::fprintf(stderr, "record_space: %s\n", what.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string op, dtype = "f32";
  std::vector<std::string> problems, families;
  std::vector<std::pair<std::string, int64_t>> constants;
  std::vector<std::pair<std::string, double>> attrs;
  evolve::replay::RecordOptions options;
  std::string compiler, scratch, isa, number;
  std::vector<std::string> pack, refined, from;
  bench::Allowed allowed;
  int threads = 1, pairs = 25, round = 0, refine = 0;
  bool cold = false, compile_only = false, count_only = false;
  double seconds = 1e9;
  options.rounds = 3;
  options.batch = 8;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--cold" || a == "--compile-only" || a == "--count") {
      (a == "--cold" ? cold : a == "--count" ? count_only : compile_only) = true;
      continue;
    }
    if (i + 1 >= argc) return fail(a + " needs a value");
    const std::string v = argv[++i];
    if (a == "--out")
      options.path = v;
    else if (a == "--op")
      op = v;
    else if (a == "--dtype")
      dtype = v;
    else if (a == "--const")
      constants.emplace_back(assignment(v).first, static_cast<int64_t>(assignment(v).second));
    else if (a == "--attr")
      attrs.push_back(assignment(v));
    else if (a == "--problem")
      problems.push_back(v);
    else if (a == "--family")
      families.push_back(v);
    else if (a == "--rounds")
      options.rounds = std::atoi(v.c_str());
    else if (a == "--points")
      options.points_max = std::atoll(v.c_str());
    else if (a == "--pairs")
      pairs = std::atoi(v.c_str());
    else if (a == "--batch")
      options.batch = std::max(1, std::atoi(v.c_str()));
    else if (a == "--compiler")
      compiler = v;
    else if (a == "--scratch")
      scratch = v;
    else if (a == "--pack")
      pack.push_back(v);
    else if (a == "--refined")
      refined.push_back(v);
    else if (a == "--from")
      from.push_back(v);
    else if (a == "--round")
      round = std::max(1, std::atoi(v.c_str()));
    else if (a == "--refine")
      refine = std::max(1, std::atoi(v.c_str()));
    else if (a == "--number")
      number = v;
    else if (a == "--isa")
      isa = v;
    else if (a == "--only")
      allowed[assignment(v).first].push_back(static_cast<int>(assignment(v).second));
    else if (a == "--part") {
      options.part = std::atoi(v.c_str());
      options.parts = std::max(1, std::atoi(v.substr(v.find('/') + 1).c_str()));
    } else if (a == "--threads")
      threads = std::atoi(v.c_str());
    else if (a == "--seconds")
      seconds = std::atof(v.c_str());
    else
      return fail("what is '" + a + "'?");
  }
  if (!pack.empty()) {
    const auto packed = evolve::replay::pack_space(pack, refined, options.rounds, options.path);
    return packed.ok() ? 0 : fail(packed.to_string());
  }
  dispatch::OpRegistry ops;
  evolve::FamilyRegistry registry;
  if (auto s = register_everything(&ops, &registry); !s.ok()) return fail(s.to_string());
  const auto spec = ops.find_shared(op);
  if (spec == nullptr) return fail("no operator '" + op + "'");
  auto type = dispatch::parse_dtype(dtype);
  if (!type.ok()) return fail(type.status().to_string());
  auto definition = dispatch::Definition::make(spec->schema(), *type, constants, attrs);
  if (!definition.ok()) return fail(definition.status().to_string());
  const dispatch::Definition& d = **definition;

  std::vector<SeenProblem> seen;
  for (const std::string& text : problems) {
    SeenProblem p;
    const size_t colon = text.find(':');
    if (colon != std::string::npos) p.weight = std::atof(text.c_str() + colon + 1);
    p.cold = cold;
    p.var_axes.assign(d.var_axes().size(), 0);
    std::istringstream parts(text.substr(0, colon));
    for (std::string part; std::getline(parts, part, ',');)
      for (size_t k = 0; k < p.var_axes.size(); ++k)
        if (d.schema().axes[static_cast<size_t>(d.var_axes()[k])].name == assignment(part).first)
          p.var_axes[k] = static_cast<int64_t>(assignment(part).second);
    if (std::count(p.var_axes.begin(), p.var_axes.end(), 0) != 0)
      return fail("problem '" + text + "': an axis is missing");
    seen.push_back(std::move(p));
  }
  evolve::CpuTarget target = evolve::detect_target(threads);
  if (isa == "avx2")
    target.avx512 = target.avx512_bf16 = false;
  else if (isa == "avx512" && (count_only || compile_only || !number.empty()))
    target.avx512 = true;
  else if (!isa.empty())
    return fail("--isa " + isa + ": avx2, or avx512 where nothing is measured");
  std::vector<std::unique_ptr<bench::RestrictedFamily>> restricted;
  std::vector<const evolve::TemplateFamily*> chosen;
  for (const evolve::TemplateFamily* f : registry.for_op(op)) {
    if (!families.empty() && std::count(families.begin(), families.end(), f->name()) == 0) continue;
    restricted.push_back(std::make_unique<bench::RestrictedFamily>(*f, allowed));
    chosen.push_back(restricted.back().get());
  }
  const evolve::search::TemplateSpace space(chosen, d, target, evolve::problem_axes(*spec, d, seen));
  if (space.family_count() == 0) return fail("no family with a valid point");

  options.name = d.name();
  for (const std::string& text : problems) options.name += ' ' + text;
  for (const auto& [name, values] : allowed)
    for (int v : values) options.name += ' ' + name + '=' + std::to_string(v);
  options.note = dispatch::CpuInfo::detect().model_name + ", " + evolve::arch_name(target) + ", " +
                 std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  const dispatch::SystemClock clock;
  const int64_t start = clock.now_ns();
  const auto used = [&] { return static_cast<double>(clock.now_ns() - start) * 1e-9; };
  options.keep_going = [&] { return used() < seconds; };
  options.on_progress = [&](int64_t done, int64_t total) {
    std::fprintf(stderr, "\r%s: batch %lld of %lld, %.0f s ", options.name.c_str(),
                 static_cast<long long>(done), static_cast<long long>(total), used());
  };
  if (!number.empty()) {
    const auto numbered = evolve::replay::number_kernels(space, d, target, number);
    return numbered.ok() ? 0 : fail(numbered.to_string());
  }
  if (count_only) {
    for (int f = 0; f < space.family_count(); ++f)
      std::printf("%s: grid of %lld\n", space.family_name(f).c_str(),
                  static_cast<long long>(space.grid_size(f)));
    std::printf("%lld different kernels\n",
                static_cast<long long>(evolve::replay::count_sources(space, d, target)));
    return 0;
  }
  if (compile_only) {
    auto toolchain = evolve::CppToolchain::find(compiler, scratch);
    if (!toolchain.ok()) return fail(toolchain.status().to_string());
    const auto compiled =
        refine > 0 ? evolve::replay::compile_refinement(space, d, target, **toolchain, options, from, refine)
                   : evolve::replay::compile_space(space, d, target, **toolchain, options);
    std::fprintf(stderr, "\n");
    return compiled.ok() ? 0 : fail(compiled.to_string());
  }
  evolve::EvaluatorOptions evaluator_options;
  evaluator_options.child_start = torch_child_start;
  evaluator_options.screen_pairs = pairs;
  evaluator_options.compiler = compiler;
  evaluator_options.scratch_dir = scratch;
  evaluator_options.screen_seconds_max = 60;
  auto evaluator = evolve::make_evaluator({spec, *definition, seen, target}, evaluator_options);
  if (!evaluator.ok()) return fail(evaluator.status().to_string());
  using namespace evolve::replay;  // NOLINT: its three ways to record
  const auto s = refine > 0  ? record_refinement(space, d, target, seen, **evaluator, options, from, refine)
                 : round > 0 ? record_round(space, d, target, seen, **evaluator, options, round)
                             : record_space(space, d, target, seen, **evaluator, options);
  std::fprintf(stderr, "\n");
  return s.ok() ? 0 : fail(s.to_string());
}
