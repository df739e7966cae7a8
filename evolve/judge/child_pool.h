// A small thread pool for cells whose program brings none of its own (no libtorch).
//
// Thread-safety: start once a process. Progress: parallel_for blocks until every range is done; workers sleep
// between calls. Cost: two wake-ups through a condition variable, some 10 µs: servers bring a better one.
#pragma once

#include "dispatch/op_spec.h"

namespace niche::evolve::judge {

// An Executor over `threads` threads (the caller is one of them); it lives until the process ends.
dispatch::Executor start_child_pool(int threads);

}  // namespace niche::evolve::judge
