// The rounds of a race on an open device: library forms and candidates in turns, each sample between two
// events behind a pacer (pacer.h), on the null stream, where libtorch's calls run unless told otherwise. As many samples
// a permit as fit.
//
// A warm sample has one more call before its first event, so that what a call finds in the cache does not depend on how
// many sides there are. The first call of a form in a process is made without a permit: it loads the library's code,
// which no burst could hold; later ones are samples. A sample that was not on the stream in full before the pacer ended is
// taken again behind a longer one.
// Events are on the null stream, which waits for all other blocking streams: work that is hidden on one of
// those counts. Thread-safety: one thread.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "evolve/probe/device_run.h"

namespace niche::evolve::probe {

using ArgumentSets = std::vector<std::array<void*, dispatch::kMaxArgs>>;  // one a copy

struct RacingCandidate {
  size_t job = 0;
  ArgumentSets arguments;
  // On the null stream; false: refused, the result says how.
  std::function<bool(const std::array<void*, dispatch::kMaxArgs>&)> launch;
  JobResult* result = nullptr;
};

struct RaceParts {
  const RunParts& run;
  const JobText& job;                       // whose race it is
  ArgumentSets arguments;                   // of the library forms
  std::vector<RacingCandidate> candidates;  // none: forms alone
  JobResult* result = nullptr;              // `job`'s
  // Made once the library is ready, before the first sample: the library's own preparations take as long as they like, so
  // no permit is held during them. A result that says why ends the race.
  std::function<dispatch::Status(bool* go)> before;
};

// Fills each candidate's launch_us, and form_us of all of them; *go false: the race ended early, and the result of who is
// at fault says why; where that cannot be told, `result` says so.
dispatch::Status run_race(const RaceParts& parts, bool* go);

}  // namespace niche::evolve::probe
