// CallSite: one place in a program that calls one Definition, resolved once: what its keys start with, the
// fallback that can always run, and a number for the per-thread cache of its last answer.
//
// The cache itself (last answer, and the table version that it came from) lives in each thread's own state: a
// CallSite is immutable and may be shared by threads. Sites whose numbers collide modulo 64 evict each other;
// nothing worse. Past 2^24 sites new ones are not cached.
//
// Thread-safety: immutable after Dispatcher::call_site; copy freely.
#pragma once

#include <cstdint>
#include <memory>

#include "dispatch/problem_key.h"
#include "dispatch/published_kernel.h"

namespace niche::dispatch {

class Dispatcher;

class CallSite {
 public:
  CallSite() = default;
  const KeyPrefix& prefix() const { return prefix_; }
  const PackedPrefix& packed_prefix() const { return packed_; }
  uint32_t definition() const { return prefix_.definition; }
  const Kernel& fallback() const { return *fallback_; }
  // Where a thread's cache entry for this site is: a byte offset into ThreadState::sites.
  uint32_t cache_entry() const { return cache_entry_; }
  // Tells this site from others that share its cache entry: 24 bits; 0: never cached.
  uint64_t tag() const { return tag_; }
  // The Definition has no more variable axes than that: the others are 0.
  bool two_axes() const { return two_axes_; }
  // Whose it is. Requires: that one lives.
  Dispatcher* dispatcher() const { return dispatcher_; }

 private:
  friend class Dispatcher;
  KeyPrefix prefix_;
  PackedPrefix packed_;
  std::shared_ptr<const Kernel> fallback_;
  uint32_t cache_entry_ = 0;
  uint64_t tag_ = 0;
  bool two_axes_ = false;
  Dispatcher* dispatcher_ = nullptr;
};

}  // namespace niche::dispatch
