// Kernels for DeviceProbe's trial on a GPU: one that is right and others that harm in one way each. CUDA C++
// without headers; one input, one output, n[0] floats each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace niche::bench_cuda {

struct Plant {
  std::string_view name;
  std::string_view harm;      // statements after the right answer was written; i is this thread's element
  std::string_view expected;  // probe_end_name of what must become of it
};

inline const std::vector<Plant>& plants() {
  static const std::vector<Plant> all = {
      {"right", "", "ran"},
      // Spins until somebody writes a value that nobody writes.
      {"hangs", "if (i == 0) while (*(volatile float*)(y + 1) != 12345.0f) {}", "hung"},
      {"hangs_everywhere", "while (*(volatile float*)(y + 1) != 12345.0f) {}", "hung"},
      // A driver may take longer to report these than the watchdog waits: then they are hung.
      {"faults", "if (i == 0) *(volatile float*)(y + (1ll << 40)) = 1.0f;", "fault"},
      {"traps", "if (i == 7) asm volatile(\"trap;\");", "fault"},
      {"past_end", "if (i == 0) y[n] = 1.0f;", "out_of_bounds"},
      {"before", "if (i == 0) y[-3] = 1.0f;", "out_of_bounds"},
      {"changes_input", "if (i == 5) x[5] += 1.0f;", "out_of_bounds"},
  };
  return all;
}

inline std::string plant_text(const Plant& p) {
  return R"(struct Args { void* p[12]; long long n[12]; void* ws; const void* packed; unsigned blocks[4]; };
extern "C" __global__ void __launch_bounds__(256) k(const __grid_constant__ Args a) {
  const long long n = a.n[0], i = blockIdx.x * 256ll + threadIdx.x;
  float *x = (float*)a.p[0], *y = (float*)a.p[1];
  if (i >= n) return;
  y[i] = 2.0f * x[i];
  )" + std::string(p.harm) +
         "\n}\n";
}

}  // namespace niche::bench_cuda
