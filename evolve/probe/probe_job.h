// ProbeJob: one candidate kernel to run on a device, in a process of its own: its cubin, its launch plan, the
// extents, and the arguments' bytes. ProbeOutcome: what became of it.
//
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/definition.h"
#include "dispatch/devices/cuda/cuda_plan.h"
#include "evolve/verdict.h"

namespace niche::evolve {

struct ProbeJob {
  std::string name;  // for messages
  std::vector<uint8_t> cubin;
  dispatch::CudaLaunchPlan plan;
  std::vector<int64_t> axes;  // one extent an axis of the schema
  struct Arg {
    dispatch::ArgRole role = dispatch::ArgRole::kIn;
    int64_t bytes = 0;          // 0: absent
    std::vector<uint8_t> data;  // of kIn and kInOut: `bytes` of them
  };
  std::vector<Arg> args;  // the schema's, in its order
  // In a batch: the earlier job whose inputs are this one's too; its `args` then need no data. -1: its own.
  int inputs_of = -1;
  int timed_launches = 0;  // after the checked one, each on its own pair of events

  // Library forms and the candidate in turns, each sample behind a pacer (pacer.h): device time of a call
  // while the queue is full. No cubin: the forms alone. Jobs of one batch race each other, once for all: their races
  // must be alike, and so must their problems. Each side has arguments of its own.
  struct Race {
    int rounds = 0;  // 0: no race
    std::string definition_json;
    std::vector<int> forms;
    int64_t flush_bytes = 0;  // read before each sample, to evict the L2; 0: the cache stays warm
    int calls = 1;            // a sample; its time is one call's
    int copies = 1;           // of the arguments, through which a sample's calls rotate
    // Of one candidate: rounds end as soon as the e-process (sign_test.h) of the first form and the candidate has this
    // much evidence either way, at this margin; 0: never.
    double margin = 0.01, e_faster = 0, e_slower = 0;
    std::vector<uint8_t> pacer;
  } race{};
};

enum class ProbeEnd : uint8_t {
  kRan,          // right so far: outputs are there, nothing else was written
  kRefused,      // the driver would not load or launch it
  kOutOfBounds,  // wrote into a guard zone, or changed an input
  kFault,        // ended the device's context
  kHung,         // was not done 50 ms after its permit; its process was killed
  kDied,         // its process ended by itself
  kUndecided,    // no process, no permit, no memory: not the candidate's fault
};
const char* probe_end_name(ProbeEnd end);

struct ProbeOutcome {
  ProbeEnd end = ProbeEnd::kUndecided;
  std::string text;                           // what, which, where
  std::vector<std::vector<uint8_t>> outputs;  // one an argument; kOut and kInOut alone are filled
  // Of the timed launches that fitted, or one a round of the race, beside what each form took in that round.
  std::vector<double> launch_us;
  std::vector<std::vector<double>> form_us;
  int bursts = 0;      // permits used
  double kill_ms = 0;  // kHung: from SIGKILL until the process, and with it the driver's context, was gone

  // Whether the candidate itself is at fault, and then the rejection with what it did.
  bool candidate_at_fault() const { return end != ProbeEnd::kRan && end != ProbeEnd::kUndecided; }
  Verdict verdict() const;
};

}  // namespace niche::evolve
