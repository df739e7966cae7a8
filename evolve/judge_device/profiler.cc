#include "evolve/judge_device/profiler.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "evolve/judge_device/ncu_report.h"
#include "evolve/probe/probe_once.h"
#include "evolve/toolchain/confined_process.h"
#include "evolve/toolchain/scratch_dir.h"

namespace niche::evolve {
namespace {

namespace fs = std::filesystem;
using dispatch::Result;

constexpr size_t kOutputBytesMax = 8 << 20;  // some thousand columns a launch
constexpr const char* kInstalled[] = {"/opt/nvidia/nsight-compute", "/usr/local/NVIDIA-Nsight-Compute"};

bool runs(const fs::path& p) { return ::access(p.c_str(), X_OK) == 0 && !fs::is_directory(p); }

std::string variable(const char* name) {
  const char* v = std::getenv(name);
  return v != nullptr ? v : "";
}

}  // namespace

Result<std::string> find_ncu() {
  std::string looked;
  const std::string path = variable("PATH");
  for (size_t from = 0; from < path.size();) {
    const size_t end = std::min(path.find(':', from), path.size());
    if (const fs::path p = fs::path(path.substr(from, end - from)) / "ncu"; runs(p))
      return fs::absolute(p).string();
    from = end + 1;
  }
  std::vector<fs::path> places = {"/usr/local/cuda/bin/ncu"};
  std::error_code ignored;
  for (const char* root : kInstalled)
    for (fs::directory_iterator at(root, ignored); !ignored && at != fs::directory_iterator();
         at.increment(ignored))
      places.push_back(at->path() / "ncu");
  std::sort(places.begin() + 1, places.end(), std::greater<>());  // the newest first
  for (const fs::path& p : places) {
    if (runs(p)) return p.string();
    looked += ", " + p.string();
  }
  return dispatch::not_found("no Nsight Compute: no ncu on PATH" + looked);
}

Result<ProfilerCounters> run_profiler(const ProfilerOptions& options, const ProbeJob& job, bool cold,
                                      const std::function<bool()>& keep_going) {
  if (options.ncu.empty()) return dispatch::unsupported("no profiler is set up");
  auto scratch = ScratchDir::make(options.scratch_dir);
  if (!scratch.ok()) return scratch.status();
  NICHE_RETURN_IF_ERROR(write_once_job(job, scratch->path()));
  ConfinedCommand c;
  // A confined process has no environment: what the loader and ncu's own files need is given by name.
  c.argv = {"/usr/bin/env", "TMPDIR=" + scratch->path(), "HOME=" + scratch->path(),
            "PATH=" + variable("PATH")};
  for (const char* name : {"LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"})
    if (const std::string v = variable(name); !v.empty()) c.argv.push_back(std::string(name) + '=' + v);
  const std::string words[] = {options.ncu,
                               "--clock-control",
                               "none",
                               "--cache-control",
                               cold ? "all" : "none",
                               "--csv",
                               "--page",
                               "raw",
                               "--set",
                               "full",
                               "--launch-skip",
                               std::to_string(launches_before_last(job.plan)),
                               "--launch-count",
                               std::to_string(job.plan.phases.size()),
                               options.program};
  c.argv.insert(c.argv.end(), std::begin(words), std::end(words));
  c.argv.insert(c.argv.end(), options.args.begin(), options.args.end());
  c.argv.insert(c.argv.end(), {"--once", scratch->path()});
  c.working_dir = scratch->path();
  c.wall_seconds = options.seconds_max;
  c.keep_going = keep_going;
  c.output_bytes_max = kOutputBytesMax;
  auto ran = run_confined(c);
  if (!ran.ok()) return ran.status();
  const std::string what = "ncu on " + job.name + ": ";
  if (ran->stopped) return dispatch::busy(what + "ended before it was done: the time was up");
  if (ran->timed_out)
    return dispatch::device_error(what + "not done after " +
                                  std::to_string(static_cast<int>(options.seconds_max)) + " s");
  auto launches = read_ncu_report(ran->output);
  if (!launches.ok()) return dispatch::device_error(what + launches.status().message());
  if (ran->exit_code != 0)
    return dispatch::device_error(what + "exit status " + std::to_string(ran->exit_code));
  const auto longest = std::max_element(launches->begin(), launches->end(), [](const auto& a, const auto& b) {
    return a.counters.us < b.counters.us;
  });
  return longest->counters;
}

}  // namespace niche::evolve
