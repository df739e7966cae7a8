#include "evolve/probe/device_race.h"

#include <algorithm>

#include "dispatch/devices/cuda/cuda_module.h"
#include "dispatch/devices/cuda/cuda_plan.h"
#include "evolve/probe/pacer.h"

namespace niche::evolve::probe {
namespace {

using dispatch::Status;

constexpr int64_t kPaceFirstNs = 60'000, kPaceMaxNs = 4'000'000;
constexpr int64_t kPaceLaunchNs = 15'000,
                  kPaceCallNs = 6'000;  // of a candidate: no library on the host's way
constexpr int64_t kBurstNs = 300'000;
constexpr int kWarmRounds = 1;
constexpr double kHostNs = 30'000;  // of events, a synchronisation and two messages

class Racing {
 public:
  Racing(const RaceParts& parts, Message* result)
      : parts_(parts), call_(parts.device->driver()), race_(parts.job.race), result_(result) {}
  ~Racing() {
    for (CUevent e : events_)
      if (e != nullptr) call_.cuEventDestroy(e);
    if (scratch_ != 0) call_.cuMemFree(scratch_);
  }

  Status run(bool* go) {
    NICHE_RETURN_IF_ERROR(burst("pacer", go, [&](int64_t) { return prepare(); }));
    if (*go) *go = prepare_forms();
    const size_t sides = race_.forms.size() + (parts_.launch ? 1 : 0);
    if (!*go || sides == 0) return {};
    took_ns_.assign(sides, kHostNs);
    pace_ns_.assign(sides, kPaceFirstNs);
    if (parts_.launch) pace_ns_.back() = kPaceLaunchNs + kPaceCallNs * race_.calls;
    for (int round = -kWarmRounds; round < race_.rounds && *go; ++round) {
      std::vector<double> us(sides, 0);
      // The order rotates, so that no side always follows the same other one.
      for (size_t i = 0; i < sides && *go;) {
        const auto side = [&](size_t k) { return (k + static_cast<size_t>(round + kWarmRounds)) % sides; };
        NICHE_RETURN_IF_ERROR(burst("timed samples", go, [&](int64_t granted_ns) {
          double left = static_cast<double>(granted_ns);
          do {
            if (!sample(side(i), &us[side(i)])) return false;
            left -= took_ns_[side(i)];
            ++i;
          } while (i < sides && took_ns_[side(i)] < left);
          return true;
        }));
      }
      if (!*go || round < 0) continue;
      if (parts_.launch) {
        result_->launch_us.push_back(us.back());
        us.pop_back();
      }
      result_->form_us.push_back(std::move(us));
    }
    return {};
  }

 private:
  template <typename F>
  Status burst(const char* step, bool* go, F&& body) {
    auto granted = parts_.bursts.begin(step, kBurstNs);
    if (!granted.ok()) return granted.status();
    *go = body(*granted);
    parts_.bursts.end();
    return {};
  }
  bool say(ProbeEnd end, const std::string& text) {
    result_->end = end;
    result_->text = text;
    return false;
  }
  bool done(CUresult r, const char* what) {
    if (r == CUDA_SUCCESS) return true;
    const bool candidate = dispatch::loses_context(r) && parts_.launch;
    return say(candidate ? ProbeEnd::kFault : ProbeEnd::kUndecided,
               call_.check(r, what, parts_.job.name).message());
  }

  bool prepare() {
    auto module = dispatch::CudaModule::load(
        parts_.device, {parts_.memory.at(parts_.job.pacer_at), static_cast<size_t>(parts_.job.pacer_bytes)},
        "pacer");
    if (!module.ok()) return say(ProbeEnd::kUndecided, module.status().message());
    module_ = *module;
    auto function = module_->function("pace", kPacerThreads, 0, 1);
    if (!function.ok()) return say(ProbeEnd::kUndecided, function.status().message());
    pacer_ = function->handle;
    const int64_t scratch = std::max<int64_t>(race_.flush_bytes, 256);
    if (!done(call_.cuMemAlloc(&scratch_, static_cast<size_t>(scratch)), "cuMemAlloc") ||
        !done(call_.cuMemsetD8(scratch_, 1, static_cast<size_t>(scratch)), "cuMemsetD8"))
      return false;
    for (CUevent& e : events_)
      if (!done(call_.cuEventCreate(&e, CU_EVENT_DEFAULT), "cuEventCreate")) return false;
    return true;
  }

  bool prepare_forms() {
    if (race_.forms.empty()) return true;
    if (parts_.library == nullptr) return say(ProbeEnd::kUndecided, "this probe links no library");
    for (const auto& arguments : parts_.arguments) {
      auto call = parts_.library->prepare(race_.definition_json, parts_.job.axes,
                                          std::span(arguments.data(), parts_.job.args.size()));
      if (!call.ok()) return say(ProbeEnd::kUndecided, call.status().message());
      calls_.push_back(std::move(*call));
    }
    for (int form : race_.forms) {
      if (!parts_.state.warm_forms.insert(std::to_string(form) + ' ' + race_.definition_json).second)
        continue;
      if (const Status s = calls_[0]->run(form); !s.ok()) return say(ProbeEnd::kUndecided, s.message());
      if (!done(call_.cuStreamSynchronize(nullptr), "cuStreamSynchronize")) return false;
    }
    return true;
  }

  bool pace(int64_t ns) {
    dispatch::NicheCudaArgs a{};
    a.p[0] = reinterpret_cast<void*>(static_cast<uintptr_t>(scratch_));
    a.p[1] = a.p[0];
    a.n[0] = race_.flush_bytes / 4;
    a.n[1] = ns;
    void* parameters[] = {&a};
    return done(call_.cuLaunchKernel(pacer_, kPacerBlocks, 1, 1, kPacerThreads, 1, 1, 0, nullptr, parameters,
                                     nullptr),
                "launch of the pacer");
  }
  bool one_call(size_t side, int number) {
    const size_t copy = static_cast<size_t>(number) % parts_.arguments.size();
    if (side == race_.forms.size()) return parts_.launch(parts_.arguments[copy]);
    const Status s = calls_[copy]->run(race_.forms[side]);
    return s.ok() || say(ProbeEnd::kUndecided, s.message());
  }

  bool sample(size_t side, double* us) {
    for (;;) {
      if (!pace(pace_ns_[side]) || !done(call_.cuEventRecord(events_[0], nullptr), "cuEventRecord"))
        return false;
      for (int c = 0; c < race_.calls; ++c)
        if (!one_call(side, c)) return false;
      if (!done(call_.cuEventRecord(events_[1], nullptr), "cuEventRecord")) return false;
      // The first event has passed already: the host was slower than the pacer, and its gaps were timed.
      const bool ran_dry = call_.cuEventQuery(events_[0]) == CUDA_SUCCESS;
      float ms = 0;
      if (!done(call_.cuStreamSynchronize(nullptr), "cuStreamSynchronize") ||
          !done(call_.cuEventElapsedTime(&ms, events_[0], events_[1]), "cuEventElapsedTime"))
        return false;
      *us = static_cast<double>(ms) * 1e3 / race_.calls;
      took_ns_[side] = static_cast<double>(pace_ns_[side]) + static_cast<double>(ms) * 1e6 + kHostNs;
      if (!ran_dry || pace_ns_[side] >= kPaceMaxNs) return true;
      pace_ns_[side] = std::min(kPaceMaxNs, pace_ns_[side] * 2);
    }
  }

  const RaceParts& parts_;
  const dispatch::CudaDriver& call_;
  const ProbeJob::Race& race_;
  Message* result_;
  std::shared_ptr<const dispatch::CudaModule> module_;
  CUfunction pacer_ = nullptr;
  CUdeviceptr scratch_ = 0;
  CUevent events_[2] = {};
  std::vector<std::unique_ptr<LibraryCall>> calls_;
  std::vector<double> took_ns_;   // by side: what a sample takes of a burst
  std::vector<int64_t> pace_ns_;  // by side
};

}  // namespace

Status run_race(const RaceParts& parts, Message* result, bool* go) { return Racing(parts, result).run(go); }

}  // namespace niche::evolve::probe
