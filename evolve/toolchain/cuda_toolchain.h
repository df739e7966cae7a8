// CudaToolchain: NVRTC as a function from CUDA C++ text to a cubin for one exact architecture. No GPU is
// needed, no nvcc, no header: generated sources include nothing.
//
// Device code alone: the text is compiled as a single translation unit whose entries are `extern "C"
// __global__`; #include and its kin are refused before the compiler sees the text, and a module with writable
// variables is refused afterwards.
// Thread-safety: const methods may run in several threads. Cost: 0.15–2 s a kernel; 50 µs from the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"
#include "evolve/toolchain/cubin_info.h"

namespace niche::evolve {

struct CompiledCubin {
  std::vector<uint8_t> bytes;
  std::string log;  // warnings and ptxas's report
  CubinInfo info;
  double ms = 0;
  bool cached = false;
};

class CudaToolchain {
 public:
  struct Options {
    std::string library{};    // a libnvrtc; empty: libnvrtc.so.13, .12 on the loader's path, then the build's
    std::string cache_dir{};  // empty: no cache. Must exist and belong to this user
    int64_t source_bytes = int64_t{1} << 20;
  };
  // kUnsupported lists where it looked, with the loader's reasons.
  static dispatch::Result<std::unique_ptr<CudaToolchain>> find(const Options& options);

  // "NVRTC 13.0 --std=c++17 ...": part of the environment key and of a kernel's provenance.
  const std::string& version() const { return version_; }
  const std::string& library() const { return library_; }
  // "sm_80", "sm_90a", ...: is it one that this NVRTC can compile for?
  bool supports(std::string_view arch) const;

  // `name` is for messages. kInvalid: the text or the architecture is refused, or the compiler found an error
  // (its log from the first error line, at most 4 KiB). kInternal: NVRTC itself failed.
  dispatch::Result<CompiledCubin> compile(std::string_view name, const std::string& text,
                                          const std::string& arch) const;

 private:
  struct Api;
  CudaToolchain() = default;
  dispatch::Result<CompiledCubin> run(std::string_view name, const std::string& text,
                                      const std::string& arch) const;
  std::shared_ptr<const Api> api_;
  Options options_;
  std::string version_, library_;
  std::vector<int> archs_;
};

}  // namespace niche::evolve
