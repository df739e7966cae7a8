#include "evolve/probe/device_probe.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "evolve/probe/probe_protocol.h"
#include "evolve/probe/shared_memory.h"
#include "evolve/worker/frame_channel.h"
#include "evolve/worker/worker_process.h"

namespace niche::evolve {

using dispatch::Status;
using probe::Message;
using Type = Message::Type;

namespace {

constexpr int kSendTimeoutMs = 2000;
constexpr int64_t kAlignment = 4096;
constexpr int64_t kMs = 1'000'000;
constexpr int64_t kStoodStillNs = 30 * kMs;

// A machine with too little CPU lets the process wait for one: it is not the device then that is late. No longer, since
// requests wait for a kernel that hangs.
constexpr int64_t kStarvedNsMax = 200 * kMs, kStarvedStepNs = 10 * kMs;

// Whether a process could run and does not get to: CPU time that stands still while its state is R.
class CpuWait {
 public:
  explicit CpuWait(int pid) : pid_(std::to_string(pid)) { (void)waits(); }
  bool waits() {
    std::ifstream times("/proc/" + pid_ + "/schedstat"), stat("/proc/" + pid_ + "/stat");
    int64_t ran_ns = -1;
    std::string text;
    times >> ran_ns;
    std::getline(stat, text);
    const size_t name_end = text.rfind(')');  // a name may hold anything
    const bool runnable = name_end != std::string::npos && text.compare(name_end, 3, ") R") == 0;
    return ran_ns - std::exchange(ran_ns_, ran_ns) < kMs && runnable && ran_ns >= 0;
  }

 private:
  const std::string pid_;
  int64_t ran_ns_ = -1;
};

int ms_up(int64_t ns) { return static_cast<int>(std::max<int64_t>(0, (ns + kMs - 1) / kMs)); }

}  // namespace

class DeviceProbe::Process {
 public:
  Process(std::shared_ptr<worker::WorkerProcess> process, int fd, std::unique_ptr<probe::SharedMemory> memory)
      : process(std::move(process)), channel(fd), memory(std::move(memory)) {}
  ~Process() {
    process->signal(SIGKILL);
    process->join();
  }
  // The next message within `ns`; kBusy: none came.
  dispatch::Result<Message> receive(int64_t ns) {
    auto text = channel.receive(ms_up(ns));
    if (!text.ok()) return text.status();
    if (!*text) return dispatch::busy("no message");
    return probe::decode(**text, memory->bytes());
  }
  Status send(const Message& m) { return channel.send(probe::encode(m), kSendTimeoutMs); }

  std::shared_ptr<worker::WorkerProcess> process;
  worker::FrameChannel channel;
  std::unique_ptr<probe::SharedMemory> memory;
};

DeviceProbe::DeviceProbe(ProbeOptions options, PermitSource& permits, const dispatch::Clock& clock)
    : options_(std::move(options)), permits_(permits), clock_(clock) {}
DeviceProbe::~DeviceProbe() = default;
int DeviceProbe::pid() const { return process_ ? process_->process->pid() : 0; }

void DeviceProbe::begin() {
  if (process_ == nullptr) (void)spawn();  // run() tries again, and says why not
}

Status DeviceProbe::spawn() {
  ready_ = false;
  auto memory = probe::SharedMemory::make(options_.memory_bytes + probe::StepNote::kBytes);
  if (!memory.ok()) return memory.status();
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return dispatch::errno_status("probe: socketpair");
  auto spawned =
      worker::WorkerProcess::start({options_.program,
                                    options_.args,
                                    {{fds[1], probe::kChannelFd}, {(*memory)->fd(), probe::kMemoryFd}},
                                    false});
  ::close(fds[1]);
  if (!spawned.ok()) {
    ::close(fds[0]);
    return spawned.status();
  }
  ++counts_.started;
  process_ = std::make_unique<Process>(std::move(*spawned), fds[0], std::move(*memory));
  return {};
}

// A session's clock leaves out how long the session was paused, which is known when it goes on: it can step back.
int64_t DeviceProbe::since(int64_t from_ns) const { return std::max<int64_t>(0, clock_.now_ns() - from_ns); }

Status DeviceProbe::await_ready() {
  if (ready_) return {};
  const int64_t from = clock_.now_ns();
  auto ready = process_->receive(options_.start_ns);
  counts_.start_ns += since(from);
  Status s = ready.status();
  if (s.ok() && ready->type != Type::kReady) s = dispatch::corrupt("its first message is not 'ready'");
  if (s.ok() && !ready->error.empty()) s = dispatch::unsupported(ready->error);
  if (!s.ok()) {
    process_.reset();
    return {s.code(), "probe " + options_.program + ": " + s.message()};
  }
  device_ = ready->text;
  ready_ = true;
  return {};
}

// Jobs that are with the process at once.
struct DeviceProbe::Batch {
  std::span<const ProbeJob> all;
  std::vector<ProbeOutcome>* outcomes = nullptr;
  std::vector<size_t> jobs;            // that are in it
  std::vector<probe::JobText> placed;  // one a job
  std::vector<bool> decided;           // one a job: its outcome is there
  bool take_apart = false;             // what is not decided runs again, each alone

  const ProbeJob& job(size_t i) const { return all[jobs[i]]; }
  ProbeOutcome& outcome(size_t i) { return (*outcomes)[jobs[i]]; }
  void decide(size_t i, ProbeOutcome o) {
    o.bursts += outcome(i).bursts;
    outcome(i) = std::move(o);
    decided[i] = true;
  }
  // What one job did says something about the others only where all are of one candidate.
  bool one_candidate() const {
    return std::all_of(jobs.begin(), jobs.end(), [&](size_t j) {
      return all[j].name == all[jobs[0]].name && all[j].cubin == all[jobs[0]].cubin;
    });
  }
};

namespace {

// Memory in the order in which it is taken.
class Room {
 public:
  explicit Room(int64_t bytes) : bytes_(bytes) {}
  int64_t take(int64_t bytes) {
    const int64_t at = top_;
    top_ = (top_ + bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  bool full() const { return top_ > bytes_; }
  int64_t taken() const { return top_ - probe::StepNote::kBytes; }

 private:
  const int64_t bytes_;
  int64_t top_ = probe::StepNote::kBytes;
};

}  // namespace

Status DeviceProbe::place(Batch* batch, std::span<const size_t> waiting, std::string* message) {
  const probe::SharedMemory& memory = *process_->memory;
  Room room(memory.bytes());
  std::map<size_t, std::vector<int64_t>> inputs;  // by the job that owns them: where they lie
  int64_t pacer_at = -1;
  const auto put = [&](const std::vector<uint8_t>& bytes) {
    const int64_t at = room.take(static_cast<int64_t>(bytes.size()));
    if (!room.full() && !bytes.empty()) std::memcpy(memory.at(at), bytes.data(), bytes.size());
    return at;
  };
  for (const size_t number : waiting) {
    if (batch->jobs.size() == probe::kJobsMax) break;
    const ProbeJob& job = batch->all[number];
    const bool borrows = job.inputs_of >= 0;
    if (borrows && static_cast<size_t>(job.inputs_of) >= number)
      return dispatch::invalid("probe job " + job.name + ": its inputs are to be those of a later job");
    const size_t owner = borrows ? static_cast<size_t>(job.inputs_of) : number;
    const ProbeJob& source = batch->all[owner];
    if (source.args.size() != job.args.size())
      return dispatch::invalid("probe job " + job.name + ": other arguments than those of " + source.name);
    probe::JobText t;
    t.name = job.name;
    t.plan = job.plan;
    t.axes = job.axes;
    t.timed_launches = job.timed_launches;
    t.race = job.race;
    t.race.pacer.clear();
    const bool fresh = inputs.count(owner) == 0;
    std::vector<int64_t>& at = inputs[owner];
    for (size_t i = 0; i < job.args.size(); ++i) {
      const ProbeJob::Arg &a = job.args[i], &from = source.args[i];
      if (a.bytes != from.bytes ||
          (a.role != dispatch::ArgRole::kOut && static_cast<int64_t>(from.data.size()) != from.bytes))
        return dispatch::invalid("probe job " + job.name + ": argument " + std::to_string(i) + " has " +
                                 std::to_string(from.data.size()) + " bytes of data, not " +
                                 std::to_string(a.bytes));
      if (fresh) at.push_back(a.role == dispatch::ArgRole::kOut ? 0 : put(from.data));
      t.args.push_back({a.role, a.bytes, at[i], a.role == dispatch::ArgRole::kIn ? 0 : room.take(a.bytes)});
    }
    t.cubin_bytes = static_cast<int64_t>(job.cubin.size());
    t.cubin_at = put(job.cubin);
    t.pacer_bytes = static_cast<int64_t>(job.race.pacer.size());
    if (pacer_at < 0 && t.pacer_bytes > 0) pacer_at = put(job.race.pacer);
    t.pacer_at = std::max<int64_t>(pacer_at, 0);
    if (room.full() && batch->jobs.empty())
      return dispatch::busy("probe job " + job.name + ": " + std::to_string(room.taken()) +
                            " bytes, ProbeOptions::memory_bytes is " + std::to_string(options_.memory_bytes));
    if (room.full()) break;
    batch->jobs.push_back(number);
    batch->placed.push_back(std::move(t));
  }
  batch->decided.assign(batch->jobs.size(), false);
  Message m;
  m.type = Type::kJobs;
  m.jobs = batch->placed;
  *message = probe::encode(m);
  return {};
}

Permit DeviceProbe::wait_for_permit(int64_t wanted_ns) {
  const int64_t until = clock_.now_ns() + options_.permit_wait_ns;
  bool late = false;
  for (;;) {
    const Permit p = permits_.ask(wanted_ns);
    // Late twice: a session that stood still learns of it by asking.
    const bool was_late = std::exchange(late, clock_.now_ns() >= until);
    if (p || (late && was_late)) return p;
    if (late) continue;
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(std::clamp<int64_t>(p.retry_after_ns, 1000, kMs * 100)));
  }
}

ProbeOutcome DeviceProbe::kill(ProbeEnd end, std::string text) {
  ProbeOutcome o;
  o.end = end;
  const int64_t from = clock_.now_ns();
  process_->process->signal(SIGKILL);
  const std::string how =
      process_->process->end_within(std::chrono::milliseconds(ms_up(options_.end_wait_ns)));
  o.kill_ms = static_cast<double>(clock_.now_ns() - from) / 1e6;
  counts_.kill_ms_max = std::max(counts_.kill_ms_max, o.kill_ms);
  o.text = std::move(text) + "; its process " + std::to_string(process_->process->pid()) + " " + how;
  if (!process_->process->ended()) {
    // Joining it would wait for ever: the driver holds it. What it owns stays behind with it.
    ++counts_.stuck;
    (void)process_.release();
    return o;
  }
  process_.reset();
  return o;
}

void DeviceProbe::take_results(Batch* batch, std::vector<probe::JobResult> results, bool lost) {
  const auto at_fault = [](const probe::JobResult& r) {
    return r.end != ProbeEnd::kRan && r.end != ProbeEnd::kUndecided;
  };
  const bool any = std::any_of(results.begin(), results.end(), at_fault);
  // A library form that ended the context: one of several candidates had written into what it reads.
  batch->take_apart = lost && !any && results.size() > 1;
  const bool mixed =
      !batch->one_candidate() && std::any_of(results.begin(), results.end(),
                                             [](const auto& r) { return r.end == ProbeEnd::kOutOfBounds; });
  for (size_t i = 0; i < results.size(); ++i) {
    probe::JobResult& r = results[i];
    if (mixed && r.end != ProbeEnd::kFault && r.end != ProbeEnd::kRefused) continue;
    // What kept it from running may have been another one.
    if (r.end == ProbeEnd::kUndecided && (any || batch->take_apart)) continue;
    ProbeOutcome o;
    o.end = r.end;
    o.text = std::move(r.text);
    o.launch_us = std::move(r.launch_us);
    o.form_us = std::move(r.form_us);
    const auto& args = batch->placed[i].args;
    if (o.end == ProbeEnd::kRan) o.outputs.resize(args.size());
    for (size_t a = 0; a < o.outputs.size(); ++a) {
      if (args[a].role == dispatch::ArgRole::kIn) continue;
      const uint8_t* from = process_->memory->at(args[a].out_at);
      o.outputs[a].assign(from, from + args[a].bytes);
    }
    counts_.out_of_bounds += o.end == ProbeEnd::kOutOfBounds ? 1 : 0;
    batch->decide(i, std::move(o));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].end != ProbeEnd::kFault) continue;
    ++counts_.faulted;  // its context is lost
    batch->decide(i, kill(ProbeEnd::kFault, batch->outcome(i).text));
    return;
  }
  if (lost) (void)kill(ProbeEnd::kUndecided, "");
}

// One batch's messages, the watchdog in between.
void DeviceProbe::converse(Batch* batch) {
  Permit permit;
  int64_t granted_at = 0;
  bool stood_still = false;
  int64_t starved = 0;
  std::optional<CpuWait> cpu;
  int& bursts = batch->outcome(0).bursts;
  const auto end = [&](ProbeEnd how, const std::string& what, bool candidate) {
    const probe::Step step = probe::read_note(process_->memory->at(0), batch->jobs.size());
    const std::string text =
        (step.text.empty() ? "start" : step.text) + " of " + batch->job(step.job).name + what;
    ProbeOutcome o = kill(how, text);
    if (candidate) return batch->decide(step.job, std::move(o));
    for (size_t i = 0; i < batch->jobs.size(); ++i) batch->decide(i, o);
  };
  for (;;) {
    // The last step before the deadline is watched: does the process run at all?
    const auto deadline = [&] { return granted_at + permit.burst_ns + options_.grace_ns + starved; };
    const int64_t limit =
        permit ? deadline() - (cpu ? 0 : kStarvedStepNs) - clock_.now_ns() : options_.quiet_ns;
    const int64_t asked_at = clock_.now_ns();
    auto m = process_->receive(limit);
    const int64_t now = clock_.now_ns();
    if (!m.ok()) {
      const bool late = m.status().code() == dispatch::Code::kBusy;
      if (late && permit && !cpu) {
        cpu.emplace(pid());
        continue;
      }
      if (late && permit && now < deadline()) continue;
      if (late && permit && starved < kStarvedNsMax && cpu->waits()) {
        starved += kStarvedStepNs;
        continue;
      }
      // Woken far too late, this process stood still, and the other one with it (a session that pauses): once more.
      if (late && now > asked_at + std::max<int64_t>(limit, 0) + kStoodStillNs && !stood_still) {
        stood_still = true;
        if (permit) granted_at = now - permit.burst_ns;
        continue;
      }
      if (late && permit) {
        ++counts_.hung;
        end(ProbeEnd::kHung,
            " was not done " + std::to_string((now - granted_at - permit.burst_ns) / kMs) +
                " ms after its permit of " + std::to_string(permit.burst_ns / 1000) + " us",
            true);
      } else {
        ++counts_.died;
        // A message that makes no sense comes from a process that a candidate has got hold of.
        end(late ? ProbeEnd::kUndecided : ProbeEnd::kDied, ": " + m.status().message(), !late);
      }
      if (permit) permits_.revoke(permit);
      return;
    }
    switch (m->type) {
      case Type::kAsk: {
        permit = wait_for_permit(m->ns);
        counts_.waited_ns += since(now);
        if (!permit) {
          ProbeOutcome o;
          o.text = "no permit within " + std::to_string(options_.permit_wait_ns / kMs) + " ms for " +
                   probe::read_note(process_->memory->at(0), batch->jobs.size()).text;
          process_.reset();
          for (size_t i = 0; i < batch->jobs.size(); ++i) batch->decide(i, o);
          return;
        }
        granted_at = clock_.now_ns();
        stood_still = false;
        starved = 0;
        cpu.reset();
        ++bursts;
        ++counts_.bursts;
        Message granted;
        granted.type = Type::kPermit;
        granted.ns = permit.burst_ns;
        (void)process_->send(granted);  // a process that is gone is found out by the next receive
        break;
      }
      case Type::kReturned:
        if (permit) {
          permit.used_ns = std::clamp<int64_t>(m->ns, 1, std::max<int64_t>(1, now - granted_at));
          permits_.give_back(permit);
          counts_.burst_ns += permit.used_ns;
        }
        permit = {};
        break;
      case Type::kResults:
        if (permit) permits_.give_back(permit);
        if (m->results.size() == batch->jobs.size())
          return take_results(batch, std::move(m->results), !m->error.empty());
        permit = {};
        [[fallthrough]];
      default:
        ++counts_.died;
        if (permit) permits_.revoke(permit);
        return end(ProbeEnd::kDied, ": a message out of turn", true);
    }
  }
}

void DeviceProbe::run_batch(Batch* batch) {
  const std::vector<size_t> waiting = std::exchange(batch->jobs, {});
  const auto fail = [&](std::span<const size_t> jobs, const Status& s) {
    batch->jobs.assign(jobs.begin(), jobs.end());
    batch->decided.assign(jobs.size(), false);
    ProbeOutcome o;
    o.text = s.message();
    for (size_t i = 0; i < jobs.size(); ++i) batch->decide(i, o);
  };
  Status s;
  if (counts_.stuck > 0)
    s = dispatch::device_error("a killed probe is still there: the device is left alone");
  if (s.ok() && process_ == nullptr) s = spawn();
  if (s.ok()) s = await_ready();
  if (!s.ok()) return fail(waiting, s);
  std::string message;
  s = place(batch, waiting, &message);
  if (!s.ok()) return fail(std::span(waiting).first(1), s);
  s = process_->channel.send(message, kSendTimeoutMs);
  if (s.ok()) return converse(batch);
  if (s.code() == dispatch::Code::kNotFound) process_.reset();
  fail(waiting, s);
}

std::vector<ProbeOutcome> DeviceProbe::run_all(std::span<const ProbeJob> jobs) {
  std::vector<ProbeOutcome> outcomes(jobs.size());
  std::vector<size_t> waiting(jobs.size()), alone;
  std::iota(waiting.begin(), waiting.end(), size_t{0});
  while (!waiting.empty() || !alone.empty()) {
    std::vector<size_t>& from = waiting.empty() ? alone : waiting;
    Batch batch;
    batch.all = jobs;
    batch.outcomes = &outcomes;
    batch.jobs = waiting.empty() ? std::vector<size_t>{alone[0]} : waiting;
    run_batch(&batch);
    std::vector<size_t> rest(from.begin() + static_cast<std::ptrdiff_t>(batch.jobs.size()), from.end());
    // Without one that hung or ended the context, the others run together again; a batch of which nothing else is known
    // is taken apart.
    const bool lost = process_ == nullptr;
    for (size_t i = 0; i < batch.jobs.size(); ++i)
      if (!batch.decided[i]) (lost && !batch.take_apart ? rest : alone).push_back(batch.jobs[i]);
    if (&from == &waiting) std::sort(rest.begin(), rest.end());
    from = std::move(rest);
  }
  return outcomes;
}

}  // namespace niche::evolve
