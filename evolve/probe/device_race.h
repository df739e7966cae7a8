// The rounds of a race on an open device: library forms and the candidate in turns, each sample between two
// events behind a pacer (pacer.h), on the null stream, where libtorch's calls run unless told otherwise.
//
// The first call of a form in a process is made without a permit: it loads the library's code, which no burst
// could hold; later ones are samples. A sample that was not on the stream in full before the pacer ended is taken again behind a longer one.
// Events are on the null stream, which waits for all other blocking streams: work that is hidden on one of
// those counts. Thread-safety: one thread.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "evolve/probe/device_run.h"

namespace niche::evolve::probe {

struct RaceParts {
  std::shared_ptr<const dispatch::CudaDevice> device;
  const JobText& job;
  const SharedMemory& memory;
  Bursts& bursts;
  LibraryForms* library;
  RunState& state;
  std::vector<std::array<void*, dispatch::kMaxArgs>> arguments;  // one a copy
  // The candidate on the null stream; false: refused, the result says how. Empty: forms alone.
  std::function<bool(const std::array<void*, dispatch::kMaxArgs>&)> launch;
};

// Fills result->launch_us and form_us; *go false: result->end and text say why it ended early.
dispatch::Status run_race(const RaceParts& parts, Message* result, bool* go);

}  // namespace niche::evolve::probe
