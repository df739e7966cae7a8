// CompiledBatch: several kernel sources in one translation unit, compiled by the compiler that built this
// test and loaded with dlopen. GuardedBuffer: memory with an inaccessible page before and after it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/kernel_abi.h"
#include "evolve/template_family.h"

namespace niche::ops_cpu_test {

class GuardedBuffer {
 public:
  // `at_end`: the last byte lies `shift` bytes before the guard page; else the first lies `shift` bytes after
  // one.
  GuardedBuffer(size_t bytes, size_t shift, bool at_end);
  ~GuardedBuffer();
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }
  // True when the slack around the data (up to the guard pages) still holds its fence pattern.
  bool fence_intact() const;

 private:
  uint8_t* map_ = nullptr;
  size_t map_bytes_ = 0, bytes_ = 0;
  uint8_t* data_ = nullptr;
};

class CompiledBatch {
 public:
  ~CompiledBatch();
  int add(evolve::KernelSource source);
  // `march`: "native", "x86-64-v4", ...; empty result: compiled (and loaded, when `load`); else the
  // compiler's text.
  std::string build(const std::string& march, bool load);
  const evolve::KernelSource& source(int i) const { return sources_[static_cast<size_t>(i)]; }
  size_t size() const { return sources_.size(); }

  // Packs (when the plan says so) and runs all phases; each phase's tasks in `pieces` pieces, the last piece
  // first. pieces = 0: one task a piece. Workspace is filled with garbage first. False: the workspace's fence
  // was overwritten.
  bool run(int i, void* const* p, const long* axes, const double* attrs, const std::vector<bool>& constant,
           int64_t pieces) const;

  void* symbol(const std::string& name) const;  // of a loaded batch; aborts when there is none

 private:
  std::vector<evolve::KernelSource> sources_;
  void* handle_ = nullptr;
};

}  // namespace niche::ops_cpu_test
