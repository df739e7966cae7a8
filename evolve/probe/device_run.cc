#include "evolve/probe/device_run.h"

#include <algorithm>
#include <cstring>

#include "dispatch/devices/cuda/cuda_kernel.h"

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
  Run(const std::shared_ptr<const dispatch::CudaDevice>& device, const JobText& job,
      const SharedMemory& memory, Bursts& bursts, Message* result)
      : device_(device),
        call_(device->driver()),
        job_(job),
        memory_(memory),
        bursts_(bursts),
        result_(result),
        scope_(*device) {}
  ~Run() {
    for (const Buffer& b : buffers_)
      if (b.block != 0) call_.cuMemFree(b.block);
    if (workspace_ != 0) call_.cuMemFree(workspace_);
    for (CUevent e : events_)
      if (e != nullptr) call_.cuEventDestroy(e);
  }

  Status run() {
    bool go = scope_.status().ok();
    if (!go) say(ProbeEnd::kUndecided, scope_.status().message());
    for (Status (Run::*step)(bool*) :
         {&Run::allocate, &Run::load, &Run::first_launch, &Run::check, &Run::time})
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

  bool fill(const Buffer& b, const JobText::Arg& a) {
    if (!done(call_.cuMemsetD8(b.block, kGuardByte, static_cast<size_t>(b.total)), "cuMemsetD8"))
      return false;
    if (a.role == ArgRole::kOut)
      return done(call_.cuMemsetD8(b.data(), kPoison, static_cast<size_t>(b.bytes)), "cuMemsetD8");
    return done(call_.cuMemcpyHtoD(b.data(), memory_.at(a.at), static_cast<size_t>(b.bytes)), "cuMemcpyHtoD");
  }

  Status allocate(bool* go) {
    return burst("allocation and upload", go, [&](int64_t) {
      for (const JobText::Arg& a : job_.args) {
        Buffer b;
        b.bytes = a.bytes;
        b.total = round_up(a.bytes, kAlignment) + 2 * kGuardBytes;
        if (a.bytes > 0 && !done(call_.cuMemAlloc(&b.block, static_cast<size_t>(b.total)), "cuMemAlloc"))
          return false;
        buffers_.push_back(b);
        if (a.bytes > 0 && !fill(b, a)) return false;
      }
      const int64_t ws = job_.plan.workspace_bytes;
      return ws == 0 ||
             done(call_.cuMemAlloc(&workspace_, static_cast<size_t>(ws + kAlignment)), "cuMemAlloc");
    });
  }

  Status load(bool* go) {
    auto definition = definition_of(job_);
    if (!definition.ok()) {
      *go = false;
      say(ProbeEnd::kUndecided, definition.status().message());
      return {};
    }
    return burst("load and launch without a problem", go, [&](int64_t) {
      ran_ = true;  // loading launches the kernel once
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
      if (s.ok()) return true;
      const CUresult alive = call_.cuStreamSynchronize(device_->own_stream());
      say(dispatch::loses_context(alive) ? ProbeEnd::kFault : ProbeEnd::kRefused, s.message());
      return false;
    });
  }

  bool launch() {
    void* p[dispatch::kMaxArgs] = {};
    long n[dispatch::kMaxAxes] = {};
    for (size_t i = 0; i < buffers_.size(); ++i)
      if (buffers_[i].block != 0) p[i] = reinterpret_cast<void*>(static_cast<uintptr_t>(buffers_[i].data()));
    std::copy(job_.axes.begin(), job_.axes.end(), n);
    NicheKernelArgs args{p, n, nullptr, nullptr, nullptr};
    const CUdeviceptr ws = static_cast<CUdeviceptr>(round_up(static_cast<int64_t>(workspace_), kAlignment));
    const dispatch::CudaLaunch l = dispatch::launch_cuda(
        *kernel_, args, reinterpret_cast<void*>(static_cast<uintptr_t>(ws)), device_->own_stream());
    if (l) return true;
    say(l.refusal == dispatch::CallFrame::Refusal::kDeviceLost ? ProbeEnd::kFault : ProbeEnd::kRefused,
        call_.check(l.error, "launch", job_.name).message());
    return false;
  }
  bool synchronise() { return done(call_.cuStreamSynchronize(device_->own_stream()), "cuStreamSynchronize"); }

  Status first_launch(bool* go) {
    return burst("launch", go, [&](int64_t) { return launch() && synchronise(); });
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
    return burst("reading back", go, [&](int64_t) {
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
    });
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
    if (wanted <= 0) return {};
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

  static constexpr double kHostUs = 20;  // of a launch, two events and their end
  std::shared_ptr<const dispatch::CudaDevice> device_;
  const dispatch::CudaDriver& call_;
  const JobText& job_;
  const SharedMemory& memory_;
  Bursts& bursts_;
  Message* result_;
  dispatch::CudaDevice::Scope scope_;
  std::vector<Buffer> buffers_;
  CUdeviceptr workspace_ = 0;
  CUevent events_[2] = {};
  std::shared_ptr<const dispatch::CudaKernel> kernel_;
  bool ran_ = false;
};

}  // namespace

Status run_on_device(const std::shared_ptr<const dispatch::CudaDevice>& device, const JobText& job,
                     const SharedMemory& memory, Bursts& bursts, Message* result) {
  return Run(device, job, memory, bursts, result).run();
}

}  // namespace niche::evolve::probe
