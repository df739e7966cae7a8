// CpuModule: a shared object of CPU kernels, loaded from a descriptor or from bytes, never by name: what was
// checked is what runs.
//
// Thread-safety: immutable. Reclamation: the code stays mapped for the life of the process, whoever lets go
// of the module: resident code is bounded at admission. Cost: load 50–200 µs; symbol 1 µs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "dispatch/base/status.h"

namespace niche::dispatch {

class CpuModule {
 public:
  // `fd`: open for reading; stays the caller's. `name` is for messages. kIo or kCorrupt with dlerror's text.
  // The file must not be written to afterwards (kernels_cache replaces files by rename alone).
  static Result<std::shared_ptr<const CpuModule>> load_fd(int fd, const std::string& name);
  // Copies the bytes into a sealed memfd first: nobody can change them under the mapping.
  static Result<std::shared_ptr<const CpuModule>> load_bytes(std::span<const uint8_t> bytes,
                                                             const std::string& name);

  // kNotFound names symbol and module.
  Result<void*> symbol(const std::string& name) const;
  const std::string& name() const { return name_; }
  // Modules loaded by this process so far: what admission bounds.
  static int64_t resident_modules();

 private:
  CpuModule(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  void* handle_;
  std::string name_;
};

}  // namespace niche::dispatch
