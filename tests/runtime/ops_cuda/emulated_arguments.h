// The arguments of one problem on the host, for an EmulatedKernel: between guard pages, filled with seeded values.
//
// Thread-safety: one thread.
#pragma once

#include <memory>
#include <random>
#include <span>
#include <vector>

#include "dispatch/definition.h"
#include "tests/runtime/ops_cpu/compiled_batch.h"

namespace niche::ops_cuda_test {

// The problem with these variable axes; the derived ones follow.
dispatch::Problem problem(const std::shared_ptr<const dispatch::Definition>& d,
                          const std::vector<int64_t>& var);

// The end of each argument touches a page that cannot be read. Borrows `p`.
class Arguments {
 public:
  Arguments(const dispatch::Problem& p, uint64_t seed);
  std::span<void* const> pointers() const { return pointers_; }
  double value(int arg, int64_t i) const;
  std::vector<uint8_t> bytes(int arg) const;
  void poison(int arg);
  bool fences_intact() const;

 private:
  void fill(int arg, std::mt19937_64& random, std::normal_distribution<float>& normal);
  const dispatch::Problem& p_;
  std::vector<ops_cpu_test::GuardedBuffer> buffers_;
  std::vector<void*> pointers_;
};

}  // namespace niche::ops_cuda_test
