// A Verdict for people.
#include "dispatch/base/format.h"
#include "evolve/verdict.h"

namespace niche::evolve {
namespace {

std::string number(double v) { return dispatch::format("%.4g", v); }

// "B=4 L=200"
std::string at_axes(const std::vector<int64_t>& var_axes, const dispatch::Definition& d) {
  std::string out;
  for (size_t i = 0; i < var_axes.size() && i < d.var_axes().size(); ++i)
    out += (out.empty() ? "" : " ") + d.schema().axes[static_cast<size_t>(d.var_axes()[i])].name + '=' +
           std::to_string(var_axes[i]);
  return out.empty() ? "its one problem" : out;
}

std::string timing_text(const PointTiming& t, const dispatch::Definition& d) {
  std::string out = at_axes(t.var_axes, d) + ": " + number(t.kernel_ns / 1e3) + " us against " +
                    number(t.fallback_ns / 1e3) + " us of " + t.fallback + ", " + number(t.speedup) + "x [" +
                    number(t.ci_low) + ", " + number(t.ci_high) + "] in " + std::to_string(t.pairs) +
                    " pairs: " + verdict_name(t.status);
  if (t.cold_speedup > 0) out += "; " + number(t.cold_speedup) + "x in the other cache state";
  return out;
}

// "M 4..4096 by 4, pointers to 16 bytes"
std::string guard_text(const dispatch::Guard& g, const dispatch::Definition& d) {
  std::string out;
  for (int i = 0; i < g.var_count; ++i) {
    const auto& r = g.var[static_cast<size_t>(i)];
    const auto axis = static_cast<size_t>(d.var_axes()[static_cast<size_t>(i)]);
    out += (out.empty() ? "" : ", ") + d.schema().axes[axis].name + ' ' + std::to_string(r.lo) +
           (r.hi == r.lo ? "" : ".." + std::to_string(r.hi));
    if (r.multiple_of > 1) out += " by " + std::to_string(r.multiple_of);
  }
  if (g.alignment_bytes > 1)
    out += (out.empty() ? "" : ", ") + ("pointers to " + std::to_string(g.alignment_bytes)) + " bytes";
  return out;
}

}  // namespace

std::string verdict_text(const Verdict& v, const dispatch::Definition& d) {
  std::string out = d.name() + ": " + verdict_name(v.status);
  if (v.failed_gate != Gate::kNone) out += std::string(", at gate '") + gate_name(v.failed_gate) + '\'';
  out += '\n';
  std::string passed;
  for (int g = 0; g < static_cast<int>(v.failed_gate); ++g)
    if (const auto gate = static_cast<Gate>(g);
        gate != Gate::kScreen)  // it spares a judge(), and is no part of one
      passed += std::string(passed.empty() ? "" : ", ") + gate_name(gate);
  out += "  passed    " + (passed.empty() ? "nothing" : passed) + '\n';
  if (!v.reason.empty()) out += "  reason    " + v.reason + '\n';
  if (v.correctness_points > 0 || v.max_error > 0)
    out += "  error     at most " + number(v.max_error) + " of the bound (root mean square " +
           number(v.rms_error) + "); right in " + std::to_string(v.correctness_points) + " cases\n";
  for (const PointTiming& t : v.timing) out += "  time      " + timing_text(t, d) + '\n';
  if (v.e_value > 0) out += "  evidence  " + number(v.e_value) + " for FASTER\n";
  if (v.faster()) out += "  serves    " + guard_text(v.guard, d) + '\n';
  if (v.failed_case)
    out += "  inputs    " + at_axes(v.failed_case->var_axes, d) + ", distribution " +
           std::to_string(v.failed_case->distribution) + ", seed " + std::to_string(v.failed_case->seed) +
           '\n';
  if (v.digest) {
    out += "  device    " + digest_text(*v.digest) + '\n';
    out += "  bound by  " + diagnosis_text(diagnose(*v.digest)) + '\n';
  }
  if (!v.sandbox.empty()) out += "  walls     " + v.sandbox + '\n';
  return out;
}

}  // namespace niche::evolve
