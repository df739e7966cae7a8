#include "evolve/probe/device_job.h"

#include <algorithm>
#include <cstring>

namespace niche::evolve::probe {
namespace {

using dispatch::ArgRole;
using dispatch::Result;
using dispatch::Status;

constexpr uint8_t kGuardByte = 0xA5, kPoison = 0xFF;  // as floats: a small negative number, and NaN
constexpr int64_t kAlignment = 256;
constexpr int kTimedMax = 4096;
constexpr double kHostUs = 20;  // of a launch, two events and their end
// A launch that is checked, of a kernel of which nothing is known yet: its poisons, the launch and two waits.
constexpr int64_t kFirstNs = 100'000, kAtLeastNs = 40'000;
constexpr int64_t kLoadNs = 250'000;
constexpr double kMargin = 1.25;  // over what the last launch took

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

bool same_phase(const dispatch::CudaPhase& a, const dispatch::CudaPhase& b) {
  return a.symbol == b.symbol && a.threads == b.threads && a.shared_bytes == b.shared_bytes &&
         a.blocks_per_sm == b.blocks_per_sm && a.cluster == b.cluster && a.overlap == b.overlap &&
         std::equal(a.factors.begin(), a.factors.end(), b.factors.begin(), b.factors.end(),
                    [](const auto& x, const auto& y) { return x.axis == y.axis && x.divisor == y.divisor; });
}
bool same_plan(const dispatch::CudaLaunchPlan& a, const dispatch::CudaLaunchPlan& b) {
  return a.workspace_bytes == b.workspace_bytes && a.sm_count == b.sm_count &&
         std::equal(a.phases.begin(), a.phases.end(), b.phases.begin(), b.phases.end(), same_phase);
}

}  // namespace

DeviceJob::DeviceJob(const RunParts& parts, const JobText& job, size_t number, JobResult* result)
    : parts_(parts),
      device_(parts.device),
      call_(parts.device->driver()),
      job_(job),
      number_(number),
      memory_(parts.memory),
      result_(result) {
  for (const JobText::Arg& a : job.args) bytes_ += static_cast<double>(a.bytes);
}

DeviceJob::~DeviceJob() {
  copies_.push_back(buffers_);
  for (const Buffers& set : copies_)
    for (const Buffer& b : set)
      if (b.block != 0) call_.cuMemFree(b.block);
  if (workspace_ != 0) call_.cuMemFree(workspace_);
  for (CUevent e : events_)
    if (e != nullptr) call_.cuEventDestroy(e);
}

// Always false.
bool DeviceJob::say(ProbeEnd end, std::string text) {
  result_->end = end;
  result_->text = std::move(text);
  going_ = false;
  return false;
}
// False: the call failed, and the result says how: an error that ends the context is the candidate's doing
// once it ran; anything else is the machine's, or what `refused` says.
bool DeviceJob::done(CUresult r, const char* what, ProbeEnd refused) {
  if (r == CUDA_SUCCESS) return true;
  const Status s = call_.check(r, what, job_.name);
  return say(dispatch::loses_context(r) && ran_ ? ProbeEnd::kFault : refused, s.message());
}
template <typename F>
Status DeviceJob::burst(const char* step, int64_t needs_ns, F&& body) {
  auto granted = parts_.bursts.begin(number_, step, needs_ns);
  if (!granted.ok()) return granted.status();
  body(*granted);
  parts_.bursts.end();
  return {};
}

// Room for an argument, its contents as they came. Copies need no permit: they run on engines of their own
// and take no multiprocessor from whoever serves.
bool DeviceJob::place_one(const JobText::Arg& a, Buffer* b) {
  b->bytes = a.bytes;
  b->total = round_up(a.bytes, kAlignment) + 2 * kGuardBytes;
  if (a.bytes == 0) return true;
  if (!done(call_.cuMemAlloc(&b->block, static_cast<size_t>(b->total)), "cuMemAlloc")) return false;
  return a.role == ArgRole::kOut ||
         done(call_.cuMemcpyHtoD(b->data(), memory_.at(a.at), static_cast<size_t>(b->bytes)), "cuMemcpyHtoD");
}
bool DeviceJob::place_set(Buffers* set) {
  set->resize(job_.args.size());
  for (size_t i = 0; i < set->size(); ++i)
    if (!place_one(job_.args[i], &(*set)[i])) return false;
  return true;
}

Status DeviceJob::place() {
  const int64_t ws = job_.plan.workspace_bytes;
  if (place_set(&buffers_) && ws != 0)
    done(call_.cuMemAlloc(&workspace_, static_cast<size_t>(ws + kAlignment)), "cuMemAlloc");
  return {};
}

bool DeviceJob::place_copy() {
  copies_.emplace_back();
  return place_set(&copies_.back());
}

// Guard zones and outputs; kernels of the driver's, so under a permit.
bool DeviceJob::poison(const Buffers& buffers) {
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
bool DeviceJob::poison_copies() {
  if (!poison(buffers_)) return false;
  return std::all_of(copies_.begin(), copies_.end(), [&](const Buffers& set) { return poison(set); });
}

// The same kernel of an earlier job; null: none.
KeptKernel* DeviceJob::kept() {
  const uint8_t* cubin = memory_.at(job_.cubin_at);
  const auto bytes = static_cast<size_t>(job_.cubin_bytes);
  auto& list = parts_.state.kernels;
  for (auto at = list.begin(); at != list.end(); ++at) {
    if (at->name != job_.name || at->cubin.size() != bytes || at->axes != job_.axes.size() ||
        at->args != job_.args.size() || !same_plan(at->plan, job_.plan) ||
        std::memcmp(at->cubin.data(), cubin, bytes) != 0)
      continue;
    list.splice(list.begin(), list, at);
    return &list.front();
  }
  return nullptr;
}

Status DeviceJob::load() {
  if (forms_alone()) return {};
  kernel_ = kept();
  if (kernel_ != nullptr) return {};
  return burst("load and launch without a problem", kLoadNs, [&](int64_t) { return load_now(); });
}

bool DeviceJob::load_now() {
  auto definition = definition_of(job_);
  if (!definition.ok()) return say(ProbeEnd::kUndecided, definition.status().message());
  ran_ = true;  // loading launches the kernel once
  const uint8_t* cubin = memory_.at(job_.cubin_at);
  const auto bytes = static_cast<size_t>(job_.cubin_bytes);
  auto module = dispatch::CudaModule::load(device_, {cubin, bytes}, job_.name);
  Status s = module.status();
  if (s.ok()) {
    dispatch::CudaKernelSpec spec;
    spec.name = job_.name;
    spec.definition = *definition;
    spec.plan = job_.plan;
    auto kernel = dispatch::load_cuda_kernel(std::move(spec), *module);
    s = kernel.status();
    if (kernel.ok()) {
      auto& list = parts_.state.kernels;
      list.push_front(
          {job_.name, {cubin, cubin + bytes}, job_.axes.size(), job_.args.size(), job_.plan, *kernel});
      kernel_ = &list.front();
      return true;
    }
  }
  const CUresult alive = call_.cuStreamSynchronize(device_->own_stream());
  return say(dispatch::loses_context(alive) ? ProbeEnd::kFault : ProbeEnd::kRefused, s.message());
}

std::array<void*, dispatch::kMaxArgs> DeviceJob::pointers(const Buffers& buffers) const {
  std::array<void*, dispatch::kMaxArgs> p{};
  for (size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].block != 0) p[i] = reinterpret_cast<void*>(static_cast<uintptr_t>(buffers[i].data()));
  return p;
}

bool DeviceJob::launch_on(std::array<void*, dispatch::kMaxArgs> p, CUstream stream) {
  long n[dispatch::kMaxAxes] = {};
  std::copy(job_.axes.begin(), job_.axes.end(), n);
  NicheKernelArgs args{p.data(), n, nullptr, nullptr, nullptr};
  const CUdeviceptr ws = static_cast<CUdeviceptr>(round_up(static_cast<int64_t>(workspace_), kAlignment));
  ran_ = true;
  const dispatch::CudaLaunch l = dispatch::launch_cuda(
      *kernel_->kernel, args, reinterpret_cast<void*>(static_cast<uintptr_t>(ws)), stream);
  if (l) return true;
  return say(l.refusal == dispatch::CallFrame::Refusal::kDeviceLost ? ProbeEnd::kFault : ProbeEnd::kRefused,
             call_.check(l.error, "launch", job_.name).message());
}
bool DeviceJob::synchronise() {
  return done(call_.cuStreamSynchronize(device_->own_stream()), "cuStreamSynchronize");
}

// By the kernel's last launch, at least as long at a larger problem as bytes say.
int64_t DeviceJob::expected_ns() const {
  if (kernel_->launch_ns == 0) return kFirstNs;
  const double larger = std::max(1.0, bytes_ / std::max(1.0, kernel_->launch_bytes));
  return std::max(kAtLeastNs, static_cast<int64_t>(kernel_->launch_ns * larger * kMargin));
}

Status DeviceJob::first_launch() {
  if (forms_alone()) return {};
  return burst("launch", expected_ns(), [&](int64_t before_ns) {
    if (!poison(buffers_) || !launch() || !synchronise()) return;
    kernel_->launch_ns = static_cast<double>(std::max<int64_t>(1, before_ns - parts_.bursts.left_ns()));
    kernel_->launch_bytes = bytes_;
  });
}

// First byte of [from, from + bytes) of the device that is not `want[i]`, or -1.
bool DeviceJob::compare(CUdeviceptr from, const uint8_t* want, int64_t bytes, int64_t* differs) {
  std::vector<uint8_t> got(static_cast<size_t>(bytes));
  if (!done(call_.cuMemcpyDtoH(got.data(), from, got.size()), "cuMemcpyDtoH")) return false;
  const auto at = std::mismatch(got.begin(), got.end(), want).first;
  *differs = at == got.end() ? -1 : at - got.begin();
  return true;
}

bool DeviceJob::check_guards(size_t i, const std::vector<uint8_t>& guard) {
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

Status DeviceJob::check() {
  if (!forms_alone()) read_back();
  return {};
}
bool DeviceJob::read_back() {
  const std::vector<uint8_t> guard(static_cast<size_t>(kGuardBytes), kGuardByte);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].block == 0) continue;
    if (!check_guards(i, guard)) return false;
    const JobText::Arg& a = job_.args[i];
    if (a.role != ArgRole::kIn) {
      if (!done(call_.cuMemcpyDtoH(memory_.at(a.out_at), buffers_[i].data(), static_cast<size_t>(a.bytes)),
                "cuMemcpyDtoH"))
        return false;
      continue;
    }
    int64_t differs = -1;
    if (!compare(buffers_[i].data(), memory_.at(a.at), a.bytes, &differs)) return false;
    if (differs < 0) continue;
    say(ProbeEnd::kOutOfBounds, "changed input " + std::to_string(i) + " at byte " + std::to_string(differs));
    return false;
  }
  return true;
}

bool DeviceJob::timed(double* us) {
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
Status DeviceJob::time() {
  const int wanted = std::min(job_.timed_launches, kTimedMax);
  if (wanted <= 0 || forms_alone()) return {};
  for (CUevent& e : events_)
    if (!done(call_.cuEventCreate(&e, CU_EVENT_DEFAULT), "cuEventCreate")) return {};
  double slowest_us = 0;
  const auto needs_ns = [&] { return static_cast<int64_t>((slowest_us + kHostUs) * 1e3); };
  while (going_ && static_cast<int>(result_->launch_us.size()) < wanted) {
    bool fits = true;
    NICHE_RETURN_IF_ERROR(burst("timed launch", needs_ns(), [&](int64_t left_ns) {
      double used_us = 0;
      do {
        double us = 0;
        if (!timed(&us)) return;
        result_->launch_us.push_back(us);
        slowest_us = std::max(slowest_us, us);
        used_us += us + kHostUs;
      } while (static_cast<int>(result_->launch_us.size()) < wanted &&
               (used_us + slowest_us + kHostUs) * 1e3 < static_cast<double>(left_ns));
      fits = slowest_us * 1e3 <= static_cast<double>(kBurstNs);
    }));
    if (fits) continue;
    result_->text = "one launch takes " + std::to_string(static_cast<int64_t>(slowest_us)) +
                    " us, more than a burst: timed once";
    return {};
  }
  return {};
}

ArgumentSets DeviceJob::copies() const {
  ArgumentSets sets = {pointers(buffers_)};
  for (const Buffers& set : copies_) sets.push_back(pointers(set));
  return sets;
}

RacingCandidate DeviceJob::candidate() {
  return {number_, copies(),
          [this](const std::array<void*, dispatch::kMaxArgs>& p) { return launch_on(p, nullptr); }, result_};
}

void DeviceJob::take_end() {
  going_ = going_ && result_->end == ProbeEnd::kUndecided && result_->text.empty();
}

}  // namespace niche::evolve::probe
