#include "evolve/session/kernel_sink.h"

#include <algorithm>

#include "dispatch/base/hash.h"

namespace niche::evolve {

std::optional<EarlierJudgement> CacheSink::earlier(const std::string& definition, const std::string& kernel,
                                                   const std::string& source_hash) {
  const kernels_cache::KernelId id = kernels_cache::kernel_id(definition, kernel, source_hash);
  // Asked first: a load of what is not there would be told as a miss.
  const auto known = cache_.of_definition(dispatch::hash_bytes(definition));
  if (std::find(known.begin(), known.end(), id) == known.end()) return std::nullopt;
  const auto record = cache_.load(id, kernels_cache::Part::kRecord);
  if (!record) return std::nullopt;
  auto verdict = Verdict::from_json(record->verdict_json);
  if (!verdict.ok()) return std::nullopt;
  verdict->guard = record->guard;
  return EarlierJudgement{*std::move(verdict), record->provenance.compiler};
}

}  // namespace niche::evolve
