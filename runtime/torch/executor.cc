// The only file of this folder that is compiled with OpenMP: at::parallel_for is a header that runs serially
// without it.
#include "runtime/torch/executor.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>

namespace niche::torch_detail {
namespace {

void aten_parallel_for(void*, int64_t tasks, void (*body)(void*, int64_t, int64_t), void* ctx) {
  at::parallel_for(0, tasks, 1, [body, ctx](int64_t begin, int64_t end) { body(ctx, begin, end); });
}

}  // namespace

dispatch::Executor aten_executor() {
  dispatch::Executor e;
  e.parallel_for = aten_parallel_for;
  e.threads = std::max(1, at::get_num_threads());
  return e;
}

void use_one_thread() { omp_set_num_threads(1); }  // this thread's own setting, not the process's

}  // namespace niche::torch_detail
