// ops_cpu: the template families' kernels against every library form, in one run and one process.
//
//   ./dev bench ops_cpu [--op NAME] [--rounds N] [--random N] [--all 1] [--json FILE]
//
// One thread. In a round every form and every kernel runs once in random order, on inputs that rotate through
// memory and values; outputs are allocated by each call, library and kernel alike, as in a server. Ratios are
// medians of the rounds' ratios against the best library form, with the 10th and 90th percentile.
// --random adds points beyond the
// families' seeds, --all prints every kernel.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>

#include "bench/ops_cpu/inputs.h"
#include "bench/ops_cpu/kernels.h"
#include "bench/ops_cpu/problems.h"
#include "dispatch/devices/cpu/cpu_info.h"
#include "dispatch/op_spec.h"
#include "evolve/judge/compare.h"
#include "evolve/session/session.h"
#include "runtime/ops/builtin.h"
#include "runtime/ops/cpu/families.h"

namespace {

using namespace niche;
using namespace niche::dispatch;
using bench::Inputs;
using bench::LoadedKernel;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string op, json;
  int rounds = 41, random = 0;
  bool all = false;
};

double quantile(std::vector<double> v, double q) {
  const auto at = static_cast<ptrdiff_t>(q * static_cast<double>(v.size() - 1) + 0.5);
  std::nth_element(v.begin(), v.begin() + at, v.end());
  return v[static_cast<size_t>(at)];
}

// samples[i][round] in µs.
std::vector<std::vector<double>> measure(size_t subjects, int rounds,
                                         const std::function<void(size_t, int)>& call) {
  std::vector<std::vector<double>> samples(subjects);
  std::vector<int> repeats(subjects, 1);
  const auto timed = [&](size_t s, int n, int first) {
    const auto t0 = Clock::now();
    for (int i = 0; i < n; ++i) call(s, first + i);
    return std::chrono::duration<double, std::micro>(Clock::now() - t0).count() / n;
  };
  for (size_t s = 0; s < subjects; ++s)
    timed(s, 2, 0), repeats[s] = std::clamp(static_cast<int>(1000 / timed(s, 2, 2)), 1, 50);
  std::vector<size_t> order(subjects);
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 rng(1);
  for (int r = 0; r < rounds; ++r) {
    std::shuffle(order.begin(), order.end(), rng);
    for (size_t s : order) samples[s].push_back(timed(s, repeats[s], r * 7));
  }
  return samples;
}

Result<Problem> make_problem(const OpSpec& op, const bench::BenchProblem& b) {
  const OpSchema& schema = *op.schema();
  std::vector<std::pair<std::string, int64_t>> constants;
  Problem p;
  for (const auto& [name, extent] : b.axes) {
    const int axis = schema.axis_index(name);
    p.axes[static_cast<size_t>(axis)] = extent;
    if (schema.axes[static_cast<size_t>(axis)].kind == AxisKind::kConst) constants.emplace_back(name, extent);
  }
  auto d = Definition::make(op.schema(), kF32, constants);
  if (!d.ok()) return d.status();
  p.definition = *d;
  if (Status s = op.derive_axes(**d, std::span(p.axes.data(), schema.axes.size())); !s.ok()) return s;
  return p;
}

// The part of the operator's error bound that each kernel uses, worst over the input distributions; above 1
// the evaluator refuses.
Result<std::vector<double>> bound_used(const OpSpec& op, const Problem& p, int form,
                                       std::vector<LoadedKernel>& kernels) {
  const Definition& d = *p.definition;
  const int y = static_cast<int>(d.schema().args.size()) - 1;
  std::vector<int64_t> shape = p.arg_shape(y);
  std::vector<double> want(static_cast<size_t>(p.arg_elements(y))), used(kernels.size(), 0);
  const DLTensor out{
      want.data(), {kDLCPU, 0}, static_cast<int>(shape.size()), kF64, shape.data(), nullptr, 0};
  for (int distribution = 0; distribution < op.distributions(); ++distribution) {
    Inputs in(op, p, distribution, 7, nullptr);
    if (!in.status().ok()) return in.status();
    if (Status s = op.reference(p, in.tensors(), std::span(&out, 1)); !s.ok()) return s;
    in.run(op, form);
    const std::vector<float> library = in.output();
    const evolve::judge::OutputView view{kF32, static_cast<int64_t>(want.size()), shape.back(), want.data()};
    const auto yardstick = evolve::judge::fallback_error(view, library.data());
    for (size_t k = 0; k < kernels.size(); ++k) {
      kernels[k].bind(d, in.args());
      in.run(kernels[k]);
      const auto c =
          evolve::judge::compare_output(view, in.output().data(), library.data(), yardstick, op.tolerance(d));
      used[k] = std::max({used[k], c.max_error, c.rms_error});
    }
  }
  return used;
}

// Prints one problem's rows and returns its JSON.
Result<std::string> bench_problem(const OpSpec& op, const Problem& p, const evolve::FamilyRegistry& families,
                                  const evolve::CppToolchain& toolchain, const Options& options) {
  std::vector<std::unique_ptr<Inputs>> sets;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    sets.push_back(std::make_unique<Inputs>(op, p, 0, seed, sets.empty() ? nullptr : sets[0].get()));
    if (!sets.back()->status().ok()) return sets.back()->status();
  }
  auto loaded =
      bench::load_kernels(families, toolchain, evolve::detect_target(1), *p.definition, options.random);
  if (!loaded.ok()) return loaded.status();
  std::vector<LoadedKernel> kernels;
  for (LoadedKernel& k : *loaded)
    if (k.limits().holds(*p.definition, p.axes.data())) {
      k.bind(*p.definition, sets[0]->args());
      kernels.push_back(std::move(k));
    }
  std::vector<int> forms;
  for (int f = 0; f < op.fallback_count(); ++f)
    if (op.fallback_applies(f, *p.definition)) forms.push_back(f);
  const size_t n = forms.size() + kernels.size();
  const auto call = [&](size_t s, int i) {
    Inputs& in = *sets[static_cast<size_t>(i) % sets.size()];
    s < forms.size() ? in.run(op, forms[s]) : in.run(kernels[s - forms.size()]);
  };
  const auto us = measure(n, options.rounds, call);
  size_t best_form = 0, best_kernel = forms.size();
  for (size_t s = 0; s < n; ++s) {
    size_t& best = s < forms.size() ? best_form : best_kernel;
    if (quantile(us[s], 0.5) < quantile(us[best], 0.5)) best = s;
  }
  const auto used = bound_used(op, p, forms[best_form], kernels);
  if (!used.ok()) return used.status();
  std::printf("%s %s\n", p.definition->name().c_str(), p.to_string().c_str());
  std::string json;
  for (size_t s = 0; s < n; ++s) {
    const bool library = s < forms.size();
    const std::string name =
        library ? std::string(op.fallback_name(forms[s])) : kernels[s - forms.size()].name();
    const double part = library ? 0 : (*used)[s - forms.size()];
    std::vector<double> ratios;
    for (size_t r = 0; r < us[s].size(); ++r) ratios.push_back(us[best_form][r] / us[s][r]);
    const double ratio = quantile(ratios, 0.5), low = quantile(ratios, 0.1), high = quantile(ratios, 0.9);
    if (options.all || library || s == best_kernel || s < forms.size() + 3)
      std::printf("  %c %10.1f us  %5.2fx [%.2f-%.2f]  %3.0f %%  %s\n",
                  s == best_form || s == best_kernel ? '*' : ' ', quantile(us[s], 0.5), ratio, low, high,
                  100 * part, name.c_str());
    json += std::string(json.empty() ? "" : ",") + "\n    {\"name\": \"" + name +
            "\", \"library\": " + (library ? "true" : "false") + ", \"bound_used\": " + std::to_string(part) +
            ", \"us\": " + std::to_string(quantile(us[s], 0.5)) + ", \"ratio\": " + std::to_string(ratio) +
            ", \"p10\": " + std::to_string(low) + ", \"p90\": " + std::to_string(high) + "}";
  }
  std::fflush(stdout);
  return "\n  {\"definition\": \"" + p.definition->name() + "\", \"problem\": \"" + p.to_string() +
         "\", \"rows\": [" + json + "]}";
}

int fail(const Status& s) { return std::fprintf(stderr, "%s\n", s.to_string().c_str()), 1; }

int run(const Options& options) {
  at::set_num_threads(1);
  const c10::InferenceMode guard;
  OpRegistry ops;
  if (Status s = ops::register_builtin_ops(ops); !s.ok()) return fail(s);
  evolve::FamilyRegistry families;
  ops_cpu::register_cpu_families(families);
  char scratch[] = "/tmp/niche_bench_XXXXXX";
  if (mkdtemp(scratch) == nullptr) return fail(errno_status("mkdtemp"));
  auto toolchain = evolve::CppToolchain::find("", scratch);
  if (!toolchain.ok()) return fail(toolchain.status());
  const std::string machine = CpuInfo::detect().model_name;
  std::printf(
      "%s, 1 thread, %d rounds, %s\nmedian, ratio to the best library form [p10-p90], part of the error "
      "bound used\n",
      machine.c_str(), options.rounds, (*toolchain)->version().c_str());
  std::string rows;
  for (const bench::BenchProblem& b : bench::problems()) {
    if (!options.op.empty() && options.op != b.op) continue;
    const OpSpec& op = *ops.find(b.op);
    auto p = make_problem(op, b);
    if (!p.ok()) return fail(p.status());
    auto row = bench_problem(op, *p, families, **toolchain, options);
    if (!row.ok()) return fail(row.status());
    rows += (rows.empty() ? "" : ",") + *row;
  }
  std::filesystem::remove_all(scratch);
  if (!options.json.empty())
    std::ofstream(options.json) << "{\"machine\": \"" << machine << "\", \"rounds\": " << options.rounds
                                << ", \"problems\": [" << rows << "\n]}\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--op")
      o.op = value;
    else if (flag == "--json")
      o.json = value;
    else if (flag == "--rounds")
      o.rounds = std::max(3, std::atoi(value.c_str()));
    else if (flag == "--random")
      o.random = std::atoi(value.c_str());
    else if (flag == "--all")
      o.all = value != "0";
    else
      return std::fprintf(stderr, "ops_cpu: unknown option '%s'\n", flag.c_str()), 2;
  }
  return run(o);
}
