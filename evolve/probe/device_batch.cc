#include <algorithm>
#include <optional>

#include "evolve/probe/device_job.h"
#include "evolve/probe/device_race.h"
#include "evolve/probe/device_run.h"

namespace niche::evolve::probe {
namespace {

using dispatch::Status;

class Batch {
 public:
  Batch(const RunParts& parts, const std::vector<JobText>& jobs, std::vector<JobResult>* results)
      : parts_(parts), results_(*results) {
    for (size_t i = 0; i < jobs.size(); ++i)
      jobs_.push_back(std::make_unique<DeviceJob>(parts, jobs[i], i, &results_[i]));
  }

  Status run() {
    for (Status (DeviceJob::*step)() : {&DeviceJob::place, &DeviceJob::load, &DeviceJob::first_launch})
      NICHE_RETURN_IF_ERROR(each(step));
    parts_.bursts.give_back();
    for (Status (DeviceJob::*step)() : {&DeviceJob::check, &DeviceJob::time})
      NICHE_RETURN_IF_ERROR(each(step));
    NICHE_RETURN_IF_ERROR(race());
    parts_.bursts.give_back();
    for (size_t i = 0; i < jobs_.size(); ++i) {
      if (!jobs_[i]->going()) continue;
      if (lost_)
        results_[i].text = "not run: another job of its batch ended the context";
      else
        results_[i].end = ProbeEnd::kRan;
    }
    return {};
  }

 private:
  Status each(Status (DeviceJob::*step)()) {
    for (size_t i = 0; i < jobs_.size() && !lost_; ++i) {
      if (!jobs_[i]->going()) continue;
      NICHE_RETURN_IF_ERROR((jobs_[i].get()->*step)());
      lost_ = results_[i].end == ProbeEnd::kFault;
    }
    return {};
  }

  // Afterwards guard zones and inputs must be as they were, and outputs, poisoned before, are what the last timed calls
  // wrote. In-out arguments were updated again and again: only their bounds mean something then.
  Status race() {
    std::vector<DeviceJob*> in;
    for (const auto& j : jobs_)
      if (!lost_ && j->going() && j->job().race.rounds > 0) in.push_back(j.get());
    if (in.empty()) return {};
    const JobText& first = in[0]->job();
    // The library's own arguments, where candidates have theirs.
    JobResult forms_result;
    std::optional<DeviceJob> library;
    if (!in[0]->forms_alone() && !first.race.forms.empty()) {
      library.emplace(parts_, first, 0, &forms_result);
      NICHE_RETURN_IF_ERROR(library->place());
      if (library->going()) in.push_back(&*library);
    }
    if (!forms_result.text.empty()) return undecided(forms_result.text), Status();
    for (DeviceJob* j : in)
      for (int c = 1; c < first.race.copies; ++c)
        if (!j->place_copy()) return undecided("no memory for another set of arguments"), Status();
    const std::vector<DeviceJob*> guarded = in;
    if (library) in.pop_back();
    JobResult& told = library ? forms_result : results_[0];
    const auto before = [&](bool* go) -> Status {
      for (DeviceJob* j : guarded) {
        NICHE_RETURN_IF_ERROR(guard(j));
        *go = *go && j->going();
      }
      return {};
    };
    RaceParts race{parts_, first, library ? library->copies() : in[0]->copies(), {}, &told, before};
    for (DeviceJob* j : in)
      if (!j->forms_alone()) race.candidates.push_back(j->candidate());
    bool go = true;
    NICHE_RETURN_IF_ERROR(run_race(race, &go));
    parts_.bursts.give_back();
    for (DeviceJob* j : in) j->take_end();
    lost_ = std::any_of(results_.begin(), results_.end(),
                        [](const JobResult& r) { return r.end == ProbeEnd::kFault; });
    if (!go) return undecided(told.text.empty() ? "the race ended early" : told.text), Status();
    return each(&DeviceJob::check);
  }

  Status guard(DeviceJob* j) {
    constexpr int64_t kGuardNs = 80'000;
    auto granted = parts_.bursts.begin(0, "guard zones", kGuardNs);
    if (!granted.ok()) return granted.status();
    (void)j->poison_copies();  // a result that says why not ends its job
    parts_.bursts.end();
    return {};
  }

  // All that are still going.
  void undecided(const std::string& why) {
    for (size_t i = 0; i < jobs_.size(); ++i)
      if (jobs_[i]->going()) results_[i].text = why, jobs_[i]->take_end();
  }

  const RunParts& parts_;
  std::vector<JobResult>& results_;
  std::vector<std::unique_ptr<DeviceJob>> jobs_;
  bool lost_ = false;
};

}  // namespace

Status run_on_device(const RunParts& parts, const std::vector<JobText>& jobs,
                     std::vector<JobResult>* results) {
  results->assign(jobs.size(), {});
  const dispatch::CudaDevice::Scope scope(*parts.device);
  if (!scope.status().ok()) {
    for (JobResult& r : *results) r.text = scope.status().message();
    return {};
  }
  const Status s = Batch(parts, jobs, results).run();
  while (parts.state.kernels.size() > RunState::kKernelsMax) parts.state.kernels.pop_back();
  return s;
}

}  // namespace niche::evolve::probe
