#include "evolve/session/kernel_record.h"

#include <algorithm>

#include "kernels_cache/sha256.h"

namespace niche::evolve {

namespace {

Verdict with_timings_of(const EarlierJudgement* earlier, const Judgement& judgement) {
  Verdict v = judgement.verdict;
  if (earlier == nullptr || earlier->compiler != judgement.compiler) return v;
  for (const PointTiming& t : earlier->verdict.timing) {
    const auto at = std::find_if(v.timing.begin(), v.timing.end(),
                                 [&](const PointTiming& now) { return now.var_axes == t.var_axes; });
    if (at == v.timing.end()) {
      if (v.timing.size() < kTimingsMax) v.timing.push_back(t);
    } else if (at->status == VerdictStatus::kAmbiguous) {
      *at = t;
    }
  }
  return v;
}

}  // namespace

kernels_cache::KernelRecord kernel_record(const JudgedKernel& k) {
  const KernelSource& source = k.rendered.source;
  kernels_cache::KernelRecord r;
  r.name = source.kernel_name;
  r.op = k.definition.schema().op;
  r.definition = k.definition.name();
  r.definition_json = k.definition_json;
  r.guard = k.judgement.verdict.guard;
  r.plan = source.plan;
  if (source.cuda != nullptr) {
    r.kind = dispatch::KernelKind::kCuda;
    r.cuda_plan = *source.cuda;
    r.plan.workspace_bytes = r.cuda_plan.workspace_bytes;
  }
  r.properties = source.properties;
  r.provenance = {k.family, k.parameters, k.session, k.judgement.compiler, k.rendered.text_hash};
  r.source = source.text;
  r.artefact = k.judgement.artefact;
  r.artefact_sha256 = kernels_cache::to_hex(kernels_cache::sha256(k.judgement.artefact));
  r.verdict_json = with_timings_of(k.earlier, k.judgement).to_json();
  double heaviest = -1, weights = 0;
  for (const ProblemBaseline& b : k.baselines) {
    r.fallback_ns += b.weight * b.fallback_ns;
    weights += b.weight;
    if (b.weight > heaviest) heaviest = b.weight, r.fallback_name = b.fallback;
  }
  if (weights > 0) r.fallback_ns /= weights;
  r.kernel_ns = r.fallback_ns * k.costs.weighted(k.costs.proven(k.judgement.verdict));
  r.created_unix_ns = k.unix_ns;
  return r;
}

}  // namespace niche::evolve
