// Lease: of many processes that share a cache directory, one evolves a Definition; the others subscribe.
//
// An exclusive flock on one file a Definition. It ends with the process, however that ends. A forked child
// that does not exec keeps it until it ends too. Thread-safety: try_acquire from any thread; a Lease has one
// owner.
#pragma once

#include <string>

#include "kernels_cache/directory.h"

namespace niche::kernels_cache {

class Lease {
 public:
  // `leases`: KernelCache::leases(). kBusy names the holder as it described itself.
  static dispatch::Result<Lease> try_acquire(const Directory& leases, const std::string& definition);
  Lease(Lease&&) = default;
  Lease& operator=(Lease&&) = default;

 private:
  explicit Lease(OwnedFd fd) : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

// Removes lease files that nobody holds. Returns how many.
int remove_free_leases(const Directory& leases);

}  // namespace niche::kernels_cache
