#include "runtime/form_meter.h"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>

#include "evolve/judge/host_args.h"

namespace niche {
namespace {

using dispatch::ArgRole;
using evolve::judge::HostArgs;
using evolve::judge::KernelArgs;
using Clock = std::chrono::steady_clock;

constexpr int kRoundsMin = 3, kRoundsMax = 15;
constexpr double kMargin = 0.97;

// One set of buffers, as a call would have them.
struct Arguments {
  explicit Arguments(const dispatch::Problem& p) : args(*p.definition, p.axes.data()) {
    for (size_t a = 0; a < p.definition->schema().args.size(); ++a) {
      if (!p.definition->has_arg(static_cast<int>(a))) continue;
      const size_t bytes = (static_cast<size_t>(p.arg_bytes(static_cast<int>(a))) + 127) / 64 * 64;
      memory.emplace_back(std::aligned_alloc(64, bytes), &std::free);
      args.p[a] = memory.back().get();
      ok = ok && args.p[a] != nullptr;
    }
  }
  KernelArgs args;
  std::vector<std::unique_ptr<void, decltype(&std::free)>> memory;
  bool ok = true;
};

}  // namespace

dispatch::Result<FormTimes> best_form(const dispatch::OpSpec& op, const dispatch::Problem& problem,
                                      double seconds_max) {
  FormTimes times;
  times.ns.assign(static_cast<size_t>(op.fallback_count()), 0);
  Arguments arguments(problem);
  if (!arguments.ok)
    return dispatch::busy(problem.definition->name() + ": no memory to measure library forms");
  HostArgs host(problem, arguments.args.p.data());
  NICHE_RETURN_IF_ERROR(op.make_inputs(problem, 0, 0x9e3779b97f4a7c15ULL, host.tensors()));
  try {
    const auto begin = Clock::now();
    for (int round = 0; round < kRoundsMax; ++round) {
      const double used = std::chrono::duration<double>(Clock::now() - begin).count();
      if (round >= 1 && used > seconds_max && (round > kRoundsMin || used > 4 * seconds_max)) break;
      for (int i = 0; i < op.fallback_count(); ++i) {
        const int form = (i + round) % op.fallback_count();
        if (form != 0 && !op.fallback_applies(form, *problem.definition)) continue;
        const std::unique_ptr<dispatch::NativeArgs> native = op.wrap(problem, arguments.args.p.data());
        dispatch::CallFrame frame;
        frame.definition = problem.definition.get();
        frame.args = &arguments.args.args;
        frame.native = native ? native->get() : nullptr;
        const auto start = Clock::now();
        op.run_fallback(form, frame);
        const double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
        double& shortest = times.ns[static_cast<size_t>(form)];
        if (round > 0 && (shortest == 0 || ns < shortest)) shortest = ns;  // the first round warms up
      }
    }
  } catch (const std::exception& e) {
    return dispatch::unsupported(problem.definition->name() + " at " + problem.to_string() +
                                 ": a library form threw: " + e.what());
  }
  for (int form = 1; form < op.fallback_count(); ++form) {
    const double ns = times.ns[static_cast<size_t>(form)], best = times.ns[static_cast<size_t>(times.best)];
    const double bar = times.best == 0 ? kMargin * best : best;
    if (ns > 0 && ns < bar) times.best = form;
  }
  return times;
}

}  // namespace niche
