#include "evolve/probe/device_run.h"

#include <algorithm>
#include <cstring>

#include "dispatch/devices/cuda/cuda_kernel.h"
#include "evolve/probe/device_race.h"

namespace niche::evolve::probe {
namespace {

using dispatch::ArgRole;
using dispatch::Result;
using dispatch::Status;

constexpr uint8_t kGuardByte = 0xA5, kPoison = 0xFF;  // as floats: a small negative number, and NaN
constexpr int64_t kAlignment = 256;
constexpr int64_t kBurstNs = 300'000;
constexpr int kTimedMax = 4096;

int64_t round_up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

// A schema with as many axes and arguments as the job: what a launch needs of a Definition.
Result<std::shared_ptr<const dispatch::Definition>> definition_of(const JobText& job) {
  auto s = std::make_shared<dispatch::OpSchema>();
  s->op = "probe";
  s->dtypes = {"f32"};
  for (size_t i = 0; i < job.axes.size(); ++i)
    s->axes.push_back({"n" + std::to_string(i), dispatch::AxisKind::kDerived});
  for (size_t i = 0; i < job.args.size(); ++i)
    s->args.push_back({"p" + std::to_string(i), job.args[i].role, "T", {}});
  return dispatch::Definition::make(std::move(s), dispatch::kF32, {});
}

// What one argument occupies: guard zone, bytes, guard zone.
struct Buffer {
  CUdeviceptr block = 0;
  int64_t bytes = 0, total = 0;
  CUdeviceptr data() const { return block + kGuardBytes; }
};

class Run {
 public:
  Run(const RunParts& parts, const JobText& job, Message* result)
      : parts_(parts),
        device_(parts.device),
        call_(parts.device->driver()),
        job_(job),
        memory_(parts.memory),
        bursts_(parts.bursts),
        result_(result),
        scope_(*parts.device) {}
  ~Run() {
    for (const auto* list : {&buffers_, &more_})
      for (const Buffer& b : *list)
        if (b.block != 0) call_.cuMemFree(b.block);
    if (workspace_ != 0) call_.cuMemFree(workspace_);
    for (CUevent e : events_)
      if (e != nullptr) call_.cuEventDestroy(e);
  }

  Status run() {
    bool go = scope_.status().ok();
    if (!go) say(ProbeEnd::kUndecided, scope_.status().message());
    for (Status (Run::*step)(bool*) :
         {&Run::allocate, &Run::load, &Run::first_launch, &Run::check, &Run::time, &Run::race})
      if (go) NICHE_RETURN_IF_ERROR((this->*step)(&go));
    if (go) result_->end = ProbeEnd::kRan;
    return {};
  }

 private:
  void say(ProbeEnd end, std::string text) {
    result_->end = end;
    result_->text = std::move(text);
  }
  // False: the call failed, and the result says how: an error that ends the context is the candidate's doing
  // once it ran; anything else is the machine's, or what `refused` says.
  bool done(CUresult r, const char* what, ProbeEnd refused = ProbeEnd::kUndecided) {
    if (r == CUDA_SUCCESS) return true;
    const Status s = call_.check(r, what, job_.name);
    say(dispatch::loses_context(r) && ran_ ? ProbeEnd::kFault : refused, s.message());
    return false;
  }
  template <typename F>
  Status burst(const char* step, bool* go, F&& body) {
    auto granted = bursts_.begin(step, kBurstNs);
    if (!granted.ok()) return granted.status();
    *go = body(*granted);
    bursts_.end();
    return {};
  }

  // Room for an argument, its contents as they came. Copies need no permit: they run on engines of their own
  // and take no multiprocessor from whoever serves.
  bool place(const JobText::Arg& a, Buffer* b) {
    b->bytes = a.bytes;
    b->total = round_up(a.bytes, kAlignment) + 2 * kGuardBytes;
    if (a.bytes == 0) return true;
    if (!done(call_.cuMemAlloc(&b->block, static_cast<size_t>(b->total)), "cuMemAlloc")) return false;
    return a.role == ArgRole::kOut ||
           done(call_.cuMemcpyHtoD(b->data(), memory_.at(a.at), static_cast<size_t>(b->bytes)),
                "cuMemcpyHtoD");
  }
  // Guard zones and outputs; kernels of the driver's, so under a permit.
  bool poison(const std::vector<Buffer>& buffers) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      const Buffer& b = buffers[i];
      if (b.block == 0) continue;
      const auto end = b.data() + static_cast<CUdeviceptr>(b.bytes);
      if (!done(call_.cuMemsetD8(b.block, kGuardByte, static_cast<size_t>(kGuardBytes)), "cuMemsetD8") ||
          !done(call_.cuMemsetD8(end, kGuardByte, static_cast<size_t>(b.total - kGuardBytes - b.bytes)),
                "cuMemsetD8"))
        return false;
      if (job_.args[i].role == ArgRole::kOut &&
          !done(call_.cuMemsetD8(b.data(), kPoison, static_cast<size_t>(b.bytes)), "cuMemsetD8"))
        return false;
    }
    // They are on the null stream; the kernel's stream does not wait for that one.
    return done(call_.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  }

  Status allocate(bool* go) {
    buffers_.resize(job_.args.size());
    for (size_t i = 0; *go && i < job_.args.size(); ++i) *go = place(job_.args[i], &buffers_[i]);
    const int64_t ws = job_.plan.workspace_bytes;
    *go = *go && (ws == 0 ||
                  done(call_.cuMemAlloc(&workspace_, static_cast<size_t>(ws + kAlignment)), "cuMemAlloc"));
    return {};
  }

  // No candidate: library forms alone.
  bool forms_alone() const { return job_.cubin_bytes == 0; }

  Status load(bool* go) {
    if (forms_alone()) return {};
    auto definition = definition_of(job_);
    if (!definition.ok()) {
      *go = false;
      say(ProbeEnd::kUndecided, definition.status().message());
      return {};
    }
    return burst("load and launch without a problem", go, [&](int64_t) {
      ran_ = true;  // loading launches the kernel once
      RunState& kept = parts_.state;
      const uint8_t* cubin = memory_.at(job_.cubin_at);
      const auto bytes = static_cast<size_t>(job_.cubin_bytes);
      if (kept.kernel != nullptr && kept.name == job_.name && kept.cubin.size() == bytes &&
          std::memcmp(kept.cubin.data(), cubin, bytes) == 0 && kept.axes == job_.axes.size() &&
          kept.args == job_.args.size()) {
        kernel_ = kept.kernel;
        return true;
      }
      auto module = dispatch::CudaModule::load(
          device_, {memory_.at(job_.cubin_at), static_cast<size_t>(job_.cubin_bytes)}, job_.name);
      Status s = module.status();
      if (s.ok()) {
        dispatch::CudaKernelSpec spec;
        spec.name = job_.name;
        spec.definition = *definition;
        spec.plan = job_.plan;
        auto kernel = dispatch::load_cuda_kernel(std::move(spec), *module);
        s = kernel.status();
        if (kernel.ok()) kernel_ = *kernel;
      }
      if (s.ok()) {
        kept = {job_.name, {cubin, cubin + bytes}, job_.axes.size(), job_.args.size(),
                kernel_,   kept.warm_forms};
        return true;
      }
      const CUresult alive = call_.cuStreamSynchronize(device_->own_stream());
      say(dispatch::loses_context(alive) ? ProbeEnd::kFault : ProbeEnd::kRefused, s.message());
      return false;
    });
  }

  std::array<void*, dispatch::kMaxArgs> pointers(const std::vector<Buffer>& buffers) const {
    std::array<void*, dispatch::kMaxArgs> p{};
    for (size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].block != 0) p[i] = reinterpret_cast<void*>(static_cast<uintptr_t>(buffers[i].data()));
    return p;
  }
  bool launch() { return launch_on(pointers(buffers_), device_->own_stream()); }
  bool launch_on(std::array<void*, dispatch::kMaxArgs> p, CUstream stream) {
    long n[dispatch::kMaxAxes] = {};
    std::copy(job_.axes.begin(), job_.axes.end(), n);
    NicheKernelArgs args{p.data(), n, nullptr, nullptr, nullptr};
    const CUdeviceptr ws = static_cast<CUdeviceptr>(round_up(static_cast<int64_t>(workspace_), kAlignment));
    const dispatch::CudaLaunch l =
        dispatch::launch_cuda(*kernel_, args, reinterpret_cast<void*>(static_cast<uintptr_t>(ws)), stream);
    if (l) return true;
    say(l.refusal == dispatch::CallFrame::Refusal::kDeviceLost ? ProbeEnd::kFault : ProbeEnd::kRefused,
        call_.check(l.error, "launch", job_.name).message());
    return false;
  }
  bool synchronise() { return done(call_.cuStreamSynchronize(device_->own_stream()), "cuStreamSynchronize"); }

  Status first_launch(bool* go) {
    if (forms_alone()) return {};
    return burst("launch", go, [&](int64_t) { return poison(buffers_) && launch() && synchronise(); });
  }

  // First byte of [from, from + bytes) of the device that is not `want[i]`, or -1.
  bool compare(CUdeviceptr from, const uint8_t* want, int64_t bytes, int64_t* differs) {
    std::vector<uint8_t> got(static_cast<size_t>(bytes));
    if (!done(call_.cuMemcpyDtoH(got.data(), from, got.size()), "cuMemcpyDtoH")) return false;
    const auto at = std::mismatch(got.begin(), got.end(), want).first;
    *differs = at == got.end() ? -1 : at - got.begin();
    return true;
  }

  bool check_guards(size_t i, const std::vector<uint8_t>& guard) {
    const Buffer& b = buffers_[i];
    const int64_t above = b.total - kGuardBytes - b.bytes;
    int64_t differs = -1;
    if (!compare(b.block, guard.data(), kGuardBytes, &differs)) return false;
    if (differs >= 0) {
      say(ProbeEnd::kOutOfBounds,
          "wrote " + std::to_string(kGuardBytes - differs) + " bytes before argument " + std::to_string(i));
      return false;
    }
    std::vector<uint8_t> long_guard(static_cast<size_t>(above), kGuardByte);
    if (!compare(b.data() + static_cast<CUdeviceptr>(b.bytes), long_guard.data(), above, &differs))
      return false;
    if (differs < 0) return true;
    say(ProbeEnd::kOutOfBounds,
        "wrote " + std::to_string(differs) + " bytes past the end of argument " + std::to_string(i));
    return false;
  }

  Status check(bool* go) {
    if (forms_alone()) return {};
    *go = read_back();
    return {};
  }
  bool read_back() {
    const std::vector<uint8_t> guard(static_cast<size_t>(kGuardBytes), kGuardByte);
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (buffers_[i].block == 0) continue;
      if (!check_guards(i, guard)) return false;
      const JobText::Arg& a = job_.args[i];
      if (a.role != ArgRole::kIn) {
        if (!done(call_.cuMemcpyDtoH(memory_.at(a.at), buffers_[i].data(), static_cast<size_t>(a.bytes)),
                  "cuMemcpyDtoH"))
          return false;
        continue;
      }
      int64_t differs = -1;
      if (!compare(buffers_[i].data(), memory_.at(a.at), a.bytes, &differs)) return false;
      if (differs < 0) continue;
      say(ProbeEnd::kOutOfBounds,
          "changed input " + std::to_string(i) + " at byte " + std::to_string(differs));
      return false;
    }
    return true;
  }

  bool timed(double* us) {
    const CUstream stream = device_->own_stream();
    float ms = 0;
    if (!done(call_.cuEventRecord(events_[0], stream), "cuEventRecord") || !launch() ||
        !done(call_.cuEventRecord(events_[1], stream), "cuEventRecord") || !synchronise() ||
        !done(call_.cuEventElapsedTime(&ms, events_[0], events_[1]), "cuEventElapsedTime"))
      return false;
    *us = static_cast<double>(ms) * 1e3;
    return true;
  }

  // As many launches a burst as fit by the slowest so far; a kernel longer than a burst is timed once.
  Status time(bool* go) {
    const int wanted = std::min(job_.timed_launches, kTimedMax);
    if (wanted <= 0 || forms_alone()) return {};
    for (CUevent& e : events_) {
      *go = done(call_.cuEventCreate(&e, CU_EVENT_DEFAULT), "cuEventCreate");
      if (!*go) return {};
    }
    double slowest_us = 0;
    while (*go && static_cast<int>(result_->launch_us.size()) < wanted) {
      bool fits = true;
      NICHE_RETURN_IF_ERROR(burst("timed launch", go, [&](int64_t granted_ns) {
        double used_us = 0;
        do {
          double us = 0;
          if (!timed(&us)) return false;
          result_->launch_us.push_back(us);
          slowest_us = std::max(slowest_us, us);
          used_us += us + kHostUs;
        } while (static_cast<int>(result_->launch_us.size()) < wanted &&
                 (used_us + slowest_us + kHostUs) * 1e3 < static_cast<double>(granted_ns));
        fits = slowest_us * 1e3 <= static_cast<double>(granted_ns);
        return true;
      }));
      if (fits) continue;
      result_->text = "one launch takes " + std::to_string(static_cast<int64_t>(slowest_us)) +
                      " us, more than a burst: timed once";
      return {};
    }
    return {};
  }

  // Copies of the arguments and a flush buffer, then rounds; afterwards guard zones and inputs must be as they
  // were, and outputs, poisoned before, are what the last timed calls wrote.
  Status race(bool* go) {
    const ProbeJob::Race& spec = job_.race;
    if (spec.rounds == 0) return {};
    std::vector<std::vector<Buffer>> sets = {buffers_};
    for (int c = 1; *go && c < spec.copies; ++c) {
      std::vector<Buffer> set(buffers_.size());
      for (size_t i = 0; *go && i < set.size(); ++i) {
        *go = place(job_.args[i], &set[i]);
        more_.push_back(set[i]);
      }
      sets.push_back(std::move(set));
    }
    if (*go)
      NICHE_RETURN_IF_ERROR(burst("guard zones", go, [&](int64_t) {
        for (const auto& set : sets)
          if (!poison(set)) return false;
        return true;
      }));
    if (!*go) return {};
    RaceParts parts{device_, job_, memory_, bursts_, parts_.library, parts_.state, {}, {}};
    for (const auto& set : sets) parts.arguments.push_back(pointers(set));
    if (!forms_alone())
      parts.launch = [this](const std::array<void*, dispatch::kMaxArgs>& p) { return launch_on(p, nullptr); };
    NICHE_RETURN_IF_ERROR(run_race(parts, result_, go));
    // In-out arguments were updated again and again: only their bounds mean something now.
    return *go ? check(go) : Status();
  }

  static constexpr double kHostUs = 20;  // of a launch, two events and their end
  const RunParts& parts_;
  std::shared_ptr<const dispatch::CudaDevice> device_;
  const dispatch::CudaDriver& call_;
  const JobText& job_;
  const SharedMemory& memory_;
  Bursts& bursts_;
  Message* result_;
  dispatch::CudaDevice::Scope scope_;
  std::vector<Buffer> buffers_, more_;
  CUdeviceptr workspace_ = 0;
  CUevent events_[2] = {};
  std::shared_ptr<const dispatch::CudaKernel> kernel_;
  bool ran_ = false;
};

}  // namespace

Status run_on_device(const RunParts& parts, const JobText& job, Message* result) {
  return Run(parts, job, result).run();
}

}  // namespace niche::evolve::probe
