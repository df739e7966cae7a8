#include "evolve/probe/device_race.h"

#include <algorithm>

#include "dispatch/devices/cuda/cuda_module.h"
#include "dispatch/devices/cuda/cuda_plan.h"
#include "evolve/probe/pacer.h"
#include "evolve/sign_test.h"

namespace niche::evolve::probe {
namespace {

using dispatch::Status;

constexpr int64_t kPaceFirstNs = 60'000, kPaceMaxNs = 4'000'000;
constexpr int64_t kPaceLaunchNs = 15'000,
                  kPaceCallNs = 6'000;  // of a candidate: no library on the host's way
constexpr int kWarmRounds = 1;
constexpr double kHostNs = 30'000;    // of events and a synchronisation
constexpr double kFirstNs = 100'000;  // beside its pacer, of a sample that was never taken

class Racing {
 public:
  explicit Racing(const RaceParts& parts)
      : parts_(parts),
        call_(parts.run.device->driver()),
        race_(parts.job.race),
        pacer_(parts.run.state.pacer) {}

  Status run(bool* go) {
    parts_.run.bursts.give_back();
    *go = prepare_forms();
    if (*go && !pacer_ready())
      NICHE_RETURN_IF_ERROR(burst("pacer", kBurstNs, go, [&](int64_t) { return prepare(); }));
    if (*go) NICHE_RETURN_IF_ERROR(parts_.before(go));
    const size_t forms = race_.forms.size(), sides = forms + parts_.candidates.size();
    if (!*go || sides == 0) return {};
    pace_ns_.assign(sides, kPaceFirstNs);
    std::fill(pace_ns_.begin() + static_cast<std::ptrdiff_t>(forms), pace_ns_.end(),
              kPaceLaunchNs + kPaceCallNs * (race_.calls + 1));
    for (int64_t pace : pace_ns_) took_ns_.push_back(static_cast<double>(pace) + kFirstNs);
    SignTest test(race_.margin);
    for (int round = -kWarmRounds; round < race_.rounds && *go; ++round) {
      std::vector<double> us(sides, 0);
      NICHE_RETURN_IF_ERROR(one_round(round, &us, go));
      if (!*go || round < 0) continue;
      const std::vector<double> form_us(us.begin(), us.begin() + static_cast<std::ptrdiff_t>(forms));
      for (size_t c = 0; c < parts_.candidates.size(); ++c) {
        parts_.candidates[c].result->launch_us.push_back(us[forms + c]);
        parts_.candidates[c].result->form_us.push_back(form_us);
      }
      if (parts_.candidates.empty()) parts_.result->form_us.push_back(form_us);
      if (forms == 0 || parts_.candidates.size() != 1) continue;
      test.add(us[0], us.back());
      if (enough(test.e_faster(), race_.e_faster) || enough(test.e_slower(), race_.e_slower)) break;
    }
    return {};
  }

 private:
  static bool enough(double e, double stop) { return stop > 0 && e >= stop; }

  Status one_round(int round, std::vector<double>* us, bool* go) {
    // The order rotates, so that no side always follows the same other one.
    const size_t sides = us->size();
    for (size_t i = 0; i < sides && *go;) {
      const auto side = [&](size_t k) { return (k + static_cast<size_t>(round + kWarmRounds)) % sides; };
      side_ = side(i);
      NICHE_RETURN_IF_ERROR(
          burst("timed samples", static_cast<int64_t>(took_ns_[side_]), go, [&](int64_t left_ns) {
            double left = static_cast<double>(left_ns);
            do {
              side_ = side(i);
              write_note(parts_.run.memory.at(0), job_of(side_), "timed samples");
              if (!sample(side_, &(*us)[side_])) return false;
              left -= took_ns_[side_];
              ++i;
            } while (i < sides && took_ns_[side(i)] < left);
            return true;
          }));
    }
    return {};
  }

  // Whose fault it is what happens while a side runs. A library form's: the candidate's, if it is the only one.
  RacingCandidate const* candidate_of(size_t side) const {
    const size_t forms = race_.forms.size();
    if (side >= forms) return &parts_.candidates[side - forms];
    return parts_.candidates.size() == 1 ? &parts_.candidates[0] : nullptr;
  }
  size_t job_of(size_t side) const {
    const RacingCandidate* c = candidate_of(side);
    return c != nullptr ? c->job : 0;
  }

  template <typename F>
  Status burst(const char* step, int64_t needs_ns, bool* go, F&& body) {
    auto granted = parts_.run.bursts.begin(job_of(side_), step, needs_ns);
    if (!granted.ok()) return granted.status();
    *go = body(*granted);
    parts_.run.bursts.end();
    return {};
  }
  bool say(ProbeEnd end, const std::string& text) {
    const RacingCandidate* c = end == ProbeEnd::kUndecided ? nullptr : candidate_of(side_);
    JobResult& r = c != nullptr ? *c->result : *parts_.result;
    r.end = end;
    r.text = text;
    return false;
  }
  bool done(CUresult r, const char* what) {
    if (r == CUDA_SUCCESS) return true;
    const bool candidate = dispatch::loses_context(r) && candidate_of(side_) != nullptr;
    return say(candidate ? ProbeEnd::kFault : ProbeEnd::kUndecided,
               call_.check(r, what, parts_.job.name).message());
  }

  int64_t scratch_bytes() const { return std::max<int64_t>(race_.flush_bytes, 256); }
  bool pacer_ready() const { return pacer_.module != nullptr && pacer_.scratch_bytes >= scratch_bytes(); }
  bool prepare() {
    if (pacer_.module == nullptr) {
      const SharedMemory& memory = parts_.run.memory;
      auto module = dispatch::CudaModule::load(
          parts_.run.device, {memory.at(parts_.job.pacer_at), static_cast<size_t>(parts_.job.pacer_bytes)},
          "pacer");
      if (!module.ok()) return say(ProbeEnd::kUndecided, module.status().message());
      auto function = (*module)->function("pace", kPacerThreads, 0, 1);
      if (!function.ok()) return say(ProbeEnd::kUndecided, function.status().message());
      for (CUevent& e : pacer_.events)
        if (!done(call_.cuEventCreate(&e, CU_EVENT_DEFAULT), "cuEventCreate")) return false;
      pacer_.function = function->handle;
      pacer_.module = *module;
    }
    if (pacer_.scratch != 0) call_.cuMemFree(pacer_.scratch);
    pacer_.scratch = 0;
    pacer_.scratch_bytes = 0;
    const auto bytes = static_cast<size_t>(scratch_bytes());
    if (!done(call_.cuMemAlloc(&pacer_.scratch, bytes), "cuMemAlloc") ||
        !done(call_.cuMemsetD8(pacer_.scratch, 1, bytes), "cuMemsetD8") ||
        !done(call_.cuStreamSynchronize(nullptr), "cuStreamSynchronize"))
      return false;
    pacer_.scratch_bytes = scratch_bytes();
    return true;
  }

  bool prepare_forms() {
    if (race_.forms.empty()) return true;
    LibraryForms* library = parts_.run.library;
    if (library == nullptr) return say(ProbeEnd::kUndecided, "this probe links no library");
    for (const auto& arguments : parts_.arguments) {
      auto call = library->prepare(race_.definition_json, parts_.job.axes,
                                   std::span(arguments.data(), parts_.job.args.size()));
      if (!call.ok()) return say(ProbeEnd::kUndecided, call.status().message());
      calls_.push_back(std::move(*call));
    }
    for (int form : race_.forms) {
      if (!parts_.run.state.warm_forms.insert(std::to_string(form) + ' ' + race_.definition_json).second)
        continue;
      if (const Status s = calls_[0]->run(form); !s.ok()) return say(ProbeEnd::kUndecided, s.message());
      if (!done(call_.cuStreamSynchronize(nullptr), "cuStreamSynchronize")) return false;
    }
    return true;
  }

  bool pace(int64_t ns) {
    dispatch::NicheCudaArgs a{};
    a.p[0] = reinterpret_cast<void*>(static_cast<uintptr_t>(pacer_.scratch));
    a.p[1] = a.p[0];
    a.n[0] = race_.flush_bytes / 4;
    a.n[1] = ns;
    void* parameters[] = {&a};
    return done(call_.cuLaunchKernel(pacer_.function, kPacerBlocks, 1, 1, kPacerThreads, 1, 1, 0, nullptr,
                                     parameters, nullptr),
                "launch of the pacer");
  }
  bool one_call(size_t side, int number) {
    if (side >= race_.forms.size()) {
      const RacingCandidate& c = parts_.candidates[side - race_.forms.size()];
      return c.launch(c.arguments[static_cast<size_t>(number) % c.arguments.size()]);
    }
    const Status s = calls_[static_cast<size_t>(number) % calls_.size()]->run(race_.forms[side]);
    return s.ok() || say(ProbeEnd::kUndecided, s.message());
  }

  // What it took of its burst is the longer of what device and host say: a host that is slow to notice the end of a
  // sample holds the permit for as long.
  bool sample(size_t side, double* us) {
    for (;;) {
      const int64_t left_ns = parts_.run.bursts.left_ns();
      if (!pace(pace_ns_[side])) return false;
      if (race_.flush_bytes == 0 && !one_call(side, 0)) return false;
      if (!done(call_.cuEventRecord(pacer_.events[0], nullptr), "cuEventRecord")) return false;
      for (int c = 0; c < race_.calls; ++c)
        if (!one_call(side, c)) return false;
      if (!done(call_.cuEventRecord(pacer_.events[1], nullptr), "cuEventRecord")) return false;
      // The first event has passed already: the host was slower than the pacer, and its gaps were timed.
      const bool ran_dry = call_.cuEventQuery(pacer_.events[0]) == CUDA_SUCCESS;
      float ms = 0;
      if (!done(call_.cuStreamSynchronize(nullptr), "cuStreamSynchronize") ||
          !done(call_.cuEventElapsedTime(&ms, pacer_.events[0], pacer_.events[1]), "cuEventElapsedTime"))
        return false;
      *us = static_cast<double>(ms) * 1e3 / race_.calls;
      const double calls = race_.calls + (race_.flush_bytes == 0 ? 1 : 0);
      took_ns_[side] = std::max(static_cast<double>(pace_ns_[side]) + *us * 1e3 * calls + kHostNs,
                                static_cast<double>(left_ns - parts_.run.bursts.left_ns()));
      if (!ran_dry || pace_ns_[side] >= kPaceMaxNs) return true;
      pace_ns_[side] = std::min(kPaceMaxNs, pace_ns_[side] * 2);
    }
  }

  const RaceParts& parts_;
  const dispatch::CudaDriver& call_;
  const ProbeJob::Race& race_;
  PacerState& pacer_;
  std::vector<std::unique_ptr<LibraryCall>> calls_;
  size_t side_ = 0;               // that runs now
  std::vector<double> took_ns_;   // by side: what a sample takes of a burst
  std::vector<int64_t> pace_ns_;  // by side
};

}  // namespace

Status run_race(const RaceParts& parts, bool* go) { return Racing(parts).run(go); }

}  // namespace niche::evolve::probe
