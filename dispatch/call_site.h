// CallSite: one place in a program that calls one Definition, resolved once: what its keys start with, the
// fallback that can always run, and a number for the per-thread cache of its last answer.
//
// The cache itself (last entry, and the table version that it came from) lives in each thread's own state: a
// CallSite is immutable and may be shared by threads. Sites whose numbers collide modulo 64 evict each other;
// nothing worse.
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
  // Which of a thread's cache entries is this site's.
  uint32_t cache_entry() const { return cache_entry_; }
  // Whose it is. Requires: that one lives.
  Dispatcher* dispatcher() const { return dispatcher_; }

 private:
  friend class Dispatcher;
  KeyPrefix prefix_;
  PackedPrefix packed_;
  std::shared_ptr<const Kernel> fallback_;
  uint32_t cache_entry_ = 0;
  Dispatcher* dispatcher_ = nullptr;
};

}  // namespace niche::dispatch
