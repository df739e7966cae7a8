#include "evolve/judge/verifier.h"

#include <algorithm>
#include <climits>

#include "evolve/judge/host_args.h"
#include "evolve/judge/oracle_server.h"

namespace niche::evolve::judge {
namespace {

using dispatch::ArgRole;

// Bytes from the buffer: "8 bytes past the end", "4 bytes before the start".
std::string distance(const SharedArena& arena, const Placement& p, uint64_t address) {
  const auto at = static_cast<int64_t>(address - reinterpret_cast<uint64_t>(arena.base()));
  if (at >= p.at + p.bytes) return std::to_string(at - p.at - p.bytes) + " bytes past the end";
  if (at < p.at) return std::to_string(p.at - at) + " bytes before the start";
  return "byte " + std::to_string(at - p.at);
}

bool near(const SharedArena& arena, const Placement& p, uint64_t address) {
  if (p.region_bytes == 0) return false;
  const auto at = static_cast<int64_t>(address - reinterpret_cast<uint64_t>(arena.base()));
  return at >= p.region - kGuardBytes / 2 && at < p.region + p.region_bytes + kGuardBytes / 2;
}

}  // namespace

dispatch::Result<Finding> Verifier::verify(Cell& cell, const VerifyRequest& r) {
  dispatch::Problem problem;
  problem.definition = definition_;
  problem.axes = r.id.axes;
  const int64_t mark = arena_->mark();
  auto found = verify_placed(cell, r, problem);
  arena_->release(mark);
  if (found.ok() && !found->ok && found->reason.find(" at ") == std::string::npos)
    found->reason += " at " + problem.to_string() + " (distribution " + std::to_string(r.id.distribution) +
                     " '" + std::string(op_.distribution_name(r.id.distribution)) + "')";
  return found;
}

dispatch::Status Verifier::place(const VerifyRequest& r, const dispatch::Problem& problem, RunBuffers& run,
                                 TestCommand& test, Side side) {
  const auto& args = definition_->schema().args;
  for (int i = 0; i < static_cast<int>(args.size()); ++i) {
    if (!definition_->has_arg(i)) continue;
    const auto element = static_cast<int64_t>(dispatch::dtype_bytes(definition_->arg_dtype(i)));
    const int64_t alignment = std::max<int64_t>(element, r.source->limits.alignment_bytes);
    auto p = arena_->place(problem.arg_bytes(i), alignment, side);
    if (!p.ok()) return p.status();
    run.arg[static_cast<size_t>(i)] = *p;
  }
  test.kernel = r.kernel;
  test.axes = problem.axes;
  test.arg = run.arg;
  test.workspace = test.packed = {};
  const dispatch::LaunchPlan& plan = r.source->plan;
  if (plan.workspace_bytes > 0) {
    auto p = arena_->place(plan.workspace_bytes, 64, side == Side::kShifted ? Side::kStart : side);
    if (!p.ok()) return p.status();
    test.workspace = *p;
    fill_poison(*arena_, *p, run.poison, true);
  }
  if (!plan.pack_symbol.empty()) {
    auto p = arena_->place(plan.packed_bytes, 64, side == Side::kShifted ? Side::kStart : side);
    if (!p.ok()) return p.status();
    test.packed = *p;
    fill_poison(*arena_, *p, run.poison, true);
  }
  return {};
}

std::string Verifier::describe_death(const Cell& cell, const VerifyRequest& r, const RunBuffers& run,
                                     const TestCommand& test) const {
  const CellDeath& d = cell.death();
  if (!d.has_address) return d.text;
  const auto& args = definition_->schema().args;
  for (size_t i = 0; i < args.size(); ++i)
    if (near(*arena_, run.arg[i], d.address)) {
      const std::string what = distance(*arena_, run.arg[i], d.address);
      const bool inside = what.rfind("byte ", 0) == 0;
      return inside && args[i].role == ArgRole::kIn ? "wrote to input '" + args[i].name + "' (" + what + ")"
                                                    : "accessed '" + args[i].name + "' " + what;
    }
  if (near(*arena_, test.workspace, d.address))
    return "accessed the workspace " + distance(*arena_, test.workspace, d.address) + " (" +
           std::to_string(r.source->plan.workspace_bytes) + " declared)";
  if (near(*arena_, test.packed, d.address))
    return "accessed the packed constants " + distance(*arena_, test.packed, d.address);
  return d.text + ", address outside of every argument";
}

std::string Verifier::run_once(Cell& cell, const VerifyRequest& r, const RunBuffers& run,
                               const TestCommand& test) {
  cell.command().kind = CellCommand::kTest;
  cell.command().test = test;
  if (!cell.run(r.cpu_seconds_max)) return describe_death(cell, r, run, test);
  if (cell.reply().failed != 0) return cell.reply().text;
  const TestReply& reply = cell.reply().test;
  // The low six bits are sticky exception flags: computing sets them.
  if ((reply.mxcsr_before ^ reply.mxcsr_after) & ~0x3fU)
    return "changed the floating-point control word (MXCSR)";
  if (reply.arguments_changed != 0) return "changed the argument struct it was called with";
  for (const auto& [p, name] :
       {std::pair(test.workspace, "workspace"), std::pair(test.packed, "packed constants")})
    if (p.region_bytes != 0 && changed_slack(*arena_, p, run.poison) != INT64_MIN)
      return std::string("wrote out of bounds of the ") + name;
  return "";
}

dispatch::Result<Finding> Verifier::verify_placed(Cell& cell, const VerifyRequest& r,
                                                  const dispatch::Problem& problem) {
  RunBuffers run[2];
  TestCommand test[2]{};
  run[0].poison = static_cast<uint32_t>(r.id.seed) & ~1U;
  run[1].poison = run[0].poison | 1U;
  test[0].split = Split::kWhole;
  test[1].split = r.threads ? Split::kThreads : Split::kShuffled;
  test[1].seed = r.id.seed;
  NICHE_RETURN_IF_ERROR(place(r, problem, run[0], test[0], Side::kEnd));
  NICHE_RETURN_IF_ERROR(
      place(r, problem, run[1], test[1], r.id.seed % 2 == 0 ? Side::kStart : Side::kShifted));
  NICHE_RETURN_IF_ERROR(oracle_->prepare(r.id, run));
  Finding f;
  for (int i = 0; i < 2; ++i) {
    f.reason = run_once(cell, r, run[i], test[i]);
    if (f.reason.empty()) continue;
    f.ok = false;
    f.gate = Gate::kCorrectness;
    f.id = r.id;
    return f;
  }
  return oracle_->check(r.id, r.form, run, r.source->properties.deterministic);
}

}  // namespace niche::evolve::judge
