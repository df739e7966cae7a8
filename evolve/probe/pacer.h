// The pacer: a kernel of niche's own that runs before a timed sample: it reads as many words as evict the L2
// (0: none), then holds the stream until the host has put the whole sample on it. So a sample's time is the
// device's alone, whatever a launch costs the host, and reading leaves no dirty lines that somebody would have
// to write back.
//
// Parameter: NicheCudaArgs; p[0] words, n[0] their number, n[1] nanoseconds to hold, p[1] one word that is
// written only if the sum of all words is a number that it cannot be.
#pragma once

#include <string_view>

namespace niche::evolve {

inline constexpr int kPacerBlocks = 1024, kPacerThreads = 256;

inline std::string_view pacer_text() {
  return R"(struct Args { void* p[12]; long long n[12]; void* ws; const void* packed; unsigned blocks[4]; };
extern "C" __global__ void __launch_bounds__(256) pace(const __grid_constant__ Args a) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  const uint4* words = (const uint4*)a.p[0];
  const long long count = a.n[0] / 4;
  unsigned sum = 0;
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += 256ll * gridDim.x) {
    const uint4 w = words[i];
    sum |= w.x | w.y | w.z | w.w;
  }
  if (sum == 0xffffffffu) *(unsigned*)a.p[1] = sum;
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < (unsigned long long)a.n[1]);
}
)";
}

}  // namespace niche::evolve
