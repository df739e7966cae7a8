/* The C interface between niche and a compiled CPU kernel. Kernels are compiled without including this file
 * (a header-free source compiles six times faster than one with <immintrin.h>): generated sources repeat the
 * struct, and NICHE_KERNEL_ABI_VERSION is part of the environment key, so that the two cannot drift apart
 * unnoticed.
 *
 * An entry is an `extern "C"`, noexcept leaf over the tasks [begin, end) of one phase: no threads, no OpenMP,
 * no calls out (mem* and libm's scalar functions apart), no constructors, no writable globals. niche splits a
 * phase's tasks over the caller's pool and starts phase i+1 after every task of phase i is done. */
#ifndef NICHE_DISPATCH_KERNEL_ABI_H_
#define NICHE_DISPATCH_KERNEL_ABI_H_

#define NICHE_KERNEL_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

typedef struct NicheKernelArgs {
  void* const* p;  /* one pointer a schema argument, schema order; null: absent. Contiguous, row-major */
  const long* n;   /* one extent a schema axis, schema order (constant, variable and derived) */
  const double* a; /* attributes, schema order */
  void* ws; /* workspace of this call, 64-byte aligned, contents undefined; null when none was asked for */
  const void* packed; /* constants packed by the kernel's own pack entry; null when it has none */
} NicheKernelArgs;

typedef void (*NicheKernelFn)(const NicheKernelArgs* args, long begin, long end);
/* Writes `packed_bytes` bytes from the constant arguments (p[i] of non-constant arguments is null). */
typedef void (*NichePackFn)(const NicheKernelArgs* args, void* packed);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* NICHE_DISPATCH_KERNEL_ABI_H_ */
