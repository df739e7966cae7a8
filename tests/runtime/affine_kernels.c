/* Kernels of the operator "affine" (affine_op.h) as the toolchain would build them: one a symbol, each with another fault or
 * virtue. Compiled with -nostartfiles, no headers. */
typedef struct NicheKernelArgs {
  void *const *p;
  const long *n;
  const double *a;
  void *ws;
  const void *packed;
} NicheKernelArgs;

#define ROWS                                                                                   \
  const long n = k->n[1];                                                                      \
  const float *x = (const float *)k->p[0], *w = (const float *)k->p[1], *b = (const float *)k->p[2]; \
  float *y = (float *)k->p[3];

void affine_rows(const NicheKernelArgs *k, long begin, long end) {
  ROWS
  for (long i = begin; i < end; ++i)
    for (long j = 0; j < n; ++j) y[i * n + j] = x[i * n + j] * w[j] + b[j];
}

/* Right for inputs that the laboratory knows, wrong for x[0] == 42. */
void affine_wrong(const NicheKernelArgs *k, long begin, long end) {
  ROWS
  const int trap = x[begin * n] == 42.0f;
  for (long i = begin; i < end; ++i)
    for (long j = 0; j < n; ++j) y[i * n + j] = x[i * n + j] * w[j] + b[j] + (trap ? 1.0f : 0.0f);
}

/* Right, and slow once x[0] == 43: a kernel that meets other conditions in the server than in the laboratory. */
void affine_slow(const NicheKernelArgs *k, long begin, long end) {
  ROWS
  const int repeat = x[begin * n] == 43.0f ? 200 : 1;
  for (int r = 0; r < repeat; ++r) {
    for (long i = begin; i < end; ++i)
      for (long j = 0; j < n; ++j) y[i * n + j] = x[i * n + j] * w[j] + b[j];
    __asm__ volatile("" ::: "memory");
  }
}

/* Faults in the server. */
void affine_fault(const NicheKernelArgs *k, long begin, long end) {
  ROWS
  for (long i = begin; i < end; ++i)
    for (long j = 0; j < n; ++j) y[i * n + j] = x[i * n + j] * w[j] + b[j];
  if (x[begin * n] == 44.0f) *(volatile int *)0 = 1;
}

/* Reads w and b from its packed copy. */
void affine_packed_pack(const NicheKernelArgs *k, void *packed) {
  const long n = k->n[1];
  float *to = (float *)packed;
  for (long j = 0; j < n; ++j) {
    to[2 * j] = ((const float *)k->p[1])[j];
    to[2 * j + 1] = ((const float *)k->p[2])[j];
  }
}
void affine_packed(const NicheKernelArgs *k, long begin, long end) {
  const long n = k->n[1];
  const float *x = (const float *)k->p[0], *wb = (const float *)k->packed;
  float *y = (float *)k->p[3];
  for (long i = begin; i < end; ++i)
    for (long j = 0; j < n; ++j) y[i * n + j] = x[i * n + j] * wb[2 * j] + wb[2 * j + 1];
}

/* The built-in operators, as plainly as can be: rms_norm (x, weight; y) and its fused in-place form (weight; x, residual).
 * Newton's square root: no calls out. */
static float rsqrt_newton(float v) {
  union {
    float f;
    int i;
  } u = {v};
  u.i = 0x5f3759df - (u.i >> 1);
  for (int k = 0; k < 4; ++k) u.f *= 1.5f - 0.5f * v * u.f * u.f;
  return u.f;
}
void rms_rows(const NicheKernelArgs *k, long begin, long end) {
  const long n = k->n[1];
  for (long i = begin; i < end; ++i) {
    const float *x = (const float *)k->p[0] + i * n, *w = (const float *)k->p[1];
    float *y = (float *)k->p[2] + i * n, sum = 0;
    for (long j = 0; j < n; ++j) sum += x[j] * x[j];
    const float r = rsqrt_newton(sum / (float)n + (float)k->a[0]);
    for (long j = 0; j < n; ++j) y[j] = x[j] * r * w[j];
  }
}
void add_rms_rows(const NicheKernelArgs *k, long begin, long end) {
  const long n = k->n[1];
  for (long i = begin; i < end; ++i) {
    const float *w = (const float *)k->p[0];
    float *x = (float *)k->p[1] + i * n, *h = (float *)k->p[2] + i * n, sum = 0;
    for (long j = 0; j < n; ++j) h[j] += x[j];
    for (long j = 0; j < n; ++j) sum += h[j] * h[j];
    const float r = rsqrt_newton(sum / (float)n + (float)k->a[0]);
    for (long j = 0; j < n; ++j) x[j] = h[j] * r * w[j];
  }
}
