// CpuInfo: what this machine's CPU is: detected, never assumed. For evolve's CpuTarget and kernels_cache's
// environment key.
//
// Thread-safety: a value. Cost: detect() reads /proc and /sys, about 1 ms; call it once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace niche::dispatch {

struct CpuInfo {
  std::string model_name;  // "AMD EPYC", as /proc/cpuinfo says
  int family = 0, model = 0, stepping = 0;
  std::vector<std::string> flags;                     // sorted: "avx2", "fma", ...
  int64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;  // of CPU 0; 0: unknown
  int logical_cpus = 1;                               // that this process may run on (affinity mask)

  bool has(const std::string& flag) const;
  bool avx2() const { return has("avx2") && has("fma"); }
  bool avx512() const { return has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl"); }
  bool avx512_bf16() const { return avx512() && has("avx512_bf16"); }
  // Model, stepping and flags in one line: equal text means that code built for one runs on the other.
  std::string identity() const;

  static CpuInfo detect();
  // From the text of a /proc/cpuinfo (first processor). For tests.
  static CpuInfo parse_cpuinfo(const std::string& text);
};

}  // namespace niche::dispatch
