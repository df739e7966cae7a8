// KernelSink: where a session puts a kernel that was verified. CacheSink is the real one.
#pragma once

#include <optional>
#include <string>

#include "dispatch/base/status.h"
#include "evolve/evaluator.h"
#include "kernels_cache/kernel_cache.h"
#include "kernels_cache/record.h"

namespace niche::evolve {

class KernelSink {
 public:
  virtual ~KernelSink() = default;
  // Durable when it returns; gives the record's file name.
  virtual dispatch::Result<std::string> commit(const kernels_cache::KernelRecord& record) = 0;
  // What commit() of a kernel of this source would replace, where it still counts; nothing: not known, held back or
  // quarantined.
  virtual std::optional<EarlierJudgement> earlier(const std::string& /*definition*/,
                                                  const std::string& /*kernel*/,
                                                  const std::string& /*source_hash*/) {
    return std::nullopt;
  }
};

class CacheSink final : public KernelSink {
 public:
  explicit CacheSink(kernels_cache::KernelCache& cache) : cache_(cache) {}
  dispatch::Result<std::string> commit(const kernels_cache::KernelRecord& record) override {
    return cache_.commit(record);
  }
  std::optional<EarlierJudgement> earlier(const std::string& definition, const std::string& kernel,
                                          const std::string& source_hash) override;

 private:
  kernels_cache::KernelCache& cache_;
};

}  // namespace niche::evolve
