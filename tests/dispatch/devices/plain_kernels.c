/* A module of CPU kernels as niche's toolchain builds them: y = VALUE * x over rows, in two phases through the workspace. */
typedef struct NicheKernelArgs {
  void* const* p;
  const long* n;
  const double* a;
  void* ws;
  const void* packed;
} NicheKernelArgs;

/* Phase 1: one task a row of x (axes B, L, N); sums of rows into the workspace. */
void sum_rows(const NicheKernelArgs* k, long begin, long end) {
  const float* x = k->p[0];
  float* ws = k->ws;
  for (long r = begin; r < end; ++r) {
    float s = 0;
    for (long i = 0; i < k->n[2]; ++i) s += x[r * k->n[2] + i];
    ws[r] = s * VALUE;
  }
}
/* Phase 2: one task per two rows. */
void spread_rows(const NicheKernelArgs* k, long begin, long end) {
  float* y = k->p[1];
  const float* ws = k->ws;
  const long rows = k->n[0] * k->n[1];
  for (long t = begin; t < end; ++t)
    for (long r = 2 * t; r < 2 * t + 2 && r < rows; ++r)
      for (long i = 0; i < k->n[2]; ++i) y[r * k->n[2] + i] = ws[r];
}
void pack_constants(const NicheKernelArgs* k, void* packed) {
  (void)k;
  *(int*)packed = VALUE;
}
