// niche: preamble
// niche: phase rows tasks=M
extern "C" void rows(const NicheKernelArgs* a, long begin, long end) noexcept {
  const long n = a->n[1];
  const float* w = (const float*)a->p[1];
  for (long i = begin; i < end; ++i) {
    const float* x = (const float*)a->p[0] + i * n;
    float* y = (float*)a->p[2] + i * n;
    f32x8 s[4] = {};
    long j = 0;
    for (; j + 32 <= n; j += 32)
      for (int k = 0; k < 4; ++k) {
        const f32x8 v = load<8>(x + j + 8 * k);
        s[k] = fma(v, v, s[k]);
      }
    for (; j + 8 <= n; j += 8) {
      const f32x8 v = load<8>(x + j);
      s[0] = fma(v, v, s[0]);
    }
    if (j < n) {
      const f32x8 v = load_n<8>(x + j, (int)(n - j));
      s[1] = fma(v, v, s[1]);
    }
    const float mean = hsum((s[0] + s[1]) + (s[2] + s[3])) / (float)n;
    const f32x8 scale = splat<8>(1.0f / __builtin_sqrtf(mean + (float)a->a[0]));
    for (j = 0; j + 8 <= n; j += 8) store(y + j, load<8>(x + j) * scale * load<8>(w + j));
    if (j < n) {
      const int r = (int)(n - j);
      store_n(y + j, load_n<8>(x + j, r) * scale * load_n<8>(w + j, r), r);
    }
  }
}
