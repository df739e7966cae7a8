// One job of a batch (device_run.h), step by step: its buffers on the device, its kernel, its checks.
//
// Thread-safety: one thread, with the device's context current. A step is not made once going() is false; an error is
// that the other end is gone.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "evolve/probe/device_race.h"
#include "evolve/probe/device_run.h"

namespace niche::evolve::probe {

class DeviceJob {
 public:
  // All outlive it.
  DeviceJob(const RunParts& parts, const JobText& job, size_t number, JobResult* result);
  ~DeviceJob();
  DeviceJob(const DeviceJob&) = delete;
  DeviceJob& operator=(const DeviceJob&) = delete;

  bool going() const { return going_; }
  // No candidate: library forms alone.
  bool forms_alone() const { return job_.cubin_bytes == 0; }
  const JobText& job() const { return job_; }

  dispatch::Status place();
  dispatch::Status load();
  dispatch::Status first_launch();
  dispatch::Status check();
  dispatch::Status time();

  // For a race: another set of its arguments, as they came; no permit is needed, but for its guard zones.
  bool place_copy();
  bool poison_copies();
  // The first set, then the copies; `candidate`: what races with them.
  ArgumentSets copies() const;
  RacingCandidate candidate();
  // A race left its result, or somebody else's ended it.
  void take_end();

 private:
  // What one argument occupies: guard zone, bytes, guard zone.
  struct Buffer {
    CUdeviceptr block = 0;
    int64_t bytes = 0, total = 0;
    CUdeviceptr data() const { return block + kGuardBytes; }
  };
  using Buffers = std::vector<Buffer>;

  bool say(ProbeEnd end, std::string text);
  bool done(CUresult r, const char* what, ProbeEnd refused = ProbeEnd::kUndecided);
  template <typename F>
  dispatch::Status burst(const char* step, int64_t needs_ns, F&& body);
  bool place_set(Buffers* set);
  bool place_one(const JobText::Arg& a, Buffer* b);
  bool poison(const Buffers& buffers);
  KeptKernel* kept();
  bool load_now();
  std::array<void*, dispatch::kMaxArgs> pointers(const Buffers& buffers) const;
  bool launch() { return launch_on(pointers(buffers_), device_->own_stream()); }
  bool launch_on(std::array<void*, dispatch::kMaxArgs> p, CUstream stream);
  bool synchronise();
  int64_t expected_ns() const;
  bool compare(CUdeviceptr from, const uint8_t* want, int64_t bytes, int64_t* differs);
  bool check_guards(size_t i, const std::vector<uint8_t>& guard);
  bool read_back();
  bool timed(double* us);

  const RunParts& parts_;
  const std::shared_ptr<const dispatch::CudaDevice> device_;
  const dispatch::CudaDriver& call_;
  const JobText& job_;
  const size_t number_;
  const SharedMemory& memory_;
  JobResult* const result_;
  Buffers buffers_;
  std::vector<Buffers> copies_;
  CUdeviceptr workspace_ = 0;
  CUevent events_[2] = {};
  KeptKernel* kernel_ = nullptr;  // in RunState, while this batch runs
  double bytes_ = 0;              // of all arguments
  bool ran_ = false, going_ = true;
};

}  // namespace niche::evolve::probe
