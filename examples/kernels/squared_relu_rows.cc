// niche: preamble
// niche: phase rows tasks=M
extern "C" void rows(const NicheKernelArgs* a, long begin, long end) noexcept {
  const long n = a->n[1];
  const float* x = (const float*)a->p[0] + begin * n;
  float* y = (float*)a->p[1] + begin * n;
  for (long i = 0; i < (end - begin) * n; i += 8) {  // the Definition's constraint: N % 8 == 0
    const f32x8 v = load<8>(x + i), positive = v > 0 ? v : f32x8{};
    store(y + i, positive * positive);
  }
}
