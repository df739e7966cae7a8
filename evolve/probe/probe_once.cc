#include "evolve/probe/probe_once.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "evolve/probe/device_run.h"
#include "evolve/probe/probe_protocol.h"
#include "evolve/probe/shared_memory.h"

namespace niche::evolve {
namespace {

using dispatch::Result;
using dispatch::Status;

constexpr int kFailed = 1, kNonsense = 65;
constexpr int64_t kAlignment = 256;
constexpr int64_t kNoEnd = int64_t{1} << 60;

std::string message_file(const std::string& directory) { return directory + "/job.json"; }
std::string memory_file(const std::string& directory) { return directory + "/memory"; }

class NoPermits final : public probe::Bursts {
 public:
  Result<int64_t> begin(size_t, std::string_view, int64_t) override { return kNoEnd; }
  void end() override {}
  void give_back() override {}
  int64_t left_ns() const override { return kNoEnd; }
};

Result<std::unique_ptr<probe::SharedMemory>> open_memory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return dispatch::errno_status("probe job " + path);
  return probe::SharedMemory::open(fd);
}

}  // namespace

int launches_before_last(const dispatch::CudaLaunchPlan& plan) {
  return 2 * static_cast<int>(plan.phases.size());
}

std::string once_directory(int argc, const char* const* argv) {
  for (int i = 1; i + 1 < argc; ++i)
    if (std::string_view(argv[i]) == "--once") return argv[i + 1];
  return {};
}

Status write_once_job(const ProbeJob& job, const std::string& directory) {
  int64_t top = probe::StepNote::kBytes;
  const auto take = [&](int64_t bytes) {
    const int64_t at = top;
    top = (top + bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  probe::JobText t;
  t.name = job.name;
  t.plan = job.plan;
  t.axes = job.axes;
  t.timed_launches = 1;
  for (const ProbeJob::Arg& a : job.args) {
    const bool in = a.role != dispatch::ArgRole::kOut, out = a.role != dispatch::ArgRole::kIn;
    if (in && static_cast<int64_t>(a.data.size()) != a.bytes)
      return dispatch::invalid("probe job " + job.name + ": an input of " + std::to_string(a.bytes) +
                               " bytes with " + std::to_string(a.data.size()) + " of data");
    t.args.push_back({a.role, a.bytes, in ? take(a.bytes) : 0, out ? take(a.bytes) : 0});
  }
  t.cubin_bytes = static_cast<int64_t>(job.cubin.size());
  t.cubin_at = take(t.cubin_bytes);
  const std::string path = memory_file(directory);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return dispatch::errno_status("probe job " + path);
  // Room for all of it, or what is copied into the mapping ends this process.
  if (const int error = ::posix_fallocate(fd, 0, top); error != 0) {
    ::close(fd);
    return dispatch::io_error("probe job " + path + ": " + std::to_string(top) +
                              " bytes: " + std::strerror(error));
  }
  auto memory = probe::SharedMemory::open(fd);
  if (!memory.ok()) return memory.status();
  for (size_t i = 0; i < job.args.size(); ++i)
    if (!job.args[i].data.empty())
      std::memcpy((*memory)->at(t.args[i].at), job.args[i].data.data(), job.args[i].data.size());
  if (!job.cubin.empty()) std::memcpy((*memory)->at(t.cubin_at), job.cubin.data(), job.cubin.size());
  probe::Message m;
  m.type = probe::Message::Type::kJobs;
  m.jobs = {std::move(t)};
  std::ofstream file(message_file(directory), std::ios::binary);
  file << probe::encode(m);
  file.close();
  return file ? Status() : dispatch::io_error("probe job " + message_file(directory) + ": not written");
}

int probe_once(const ProbeHooks& hooks, int ordinal, const std::string& directory) {
  const auto complain = [](const std::string& what, int code) {
    std::fprintf(stderr, "niche probe: %s\n", what.c_str());
    return code;
  };
  auto memory = open_memory(memory_file(directory));
  if (!memory.ok()) return complain(memory.status().to_string(), kNonsense);
  std::ifstream file(message_file(directory), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto m = probe::decode(text, (*memory)->bytes());
  if (!m.ok()) return complain(m.status().to_string(), kNonsense);
  if (m->type != probe::Message::Type::kJobs || m->jobs.size() != 1 || m->jobs[0].race.rounds != 0)
    return complain(directory + ": expected one job without a race", kNonsense);
  auto device = open_probed_device(hooks, ordinal);
  if (!device.ok()) return complain(device.status().to_string(), kFailed);
  NoPermits permits;
  probe::RunState state;
  std::vector<probe::JobResult> results;
  const Status s = probe::run_on_device({*device, **memory, permits, nullptr, state}, m->jobs, &results);
  if (!s.ok()) return complain(s.to_string(), kFailed);
  if (results.empty() || results[0].end != ProbeEnd::kRan)
    return complain(
        results.empty() ? "no result" : std::string(probe_end_name(results[0].end)) + ": " + results[0].text,
        kFailed);
  return 0;
}

}  // namespace niche::evolve
