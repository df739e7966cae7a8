// KernelSink: where a session puts a kernel that was verified. CacheSink is the real one.
#pragma once

#include <string>

#include "dispatch/base/status.h"
#include "kernels_cache/kernel_cache.h"
#include "kernels_cache/record.h"

namespace niche::evolve {

class KernelSink {
 public:
  virtual ~KernelSink() = default;
  // Durable when it returns; gives the record's file name.
  virtual dispatch::Result<std::string> commit(const kernels_cache::KernelRecord& record) = 0;
};

class CacheSink final : public KernelSink {
 public:
  explicit CacheSink(kernels_cache::KernelCache& cache) : cache_(cache) {}
  dispatch::Result<std::string> commit(const kernels_cache::KernelRecord& record) override {
    return cache_.commit(record);
  }

 private:
  kernels_cache::KernelCache& cache_;
};

}  // namespace niche::evolve
