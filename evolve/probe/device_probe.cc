#include "evolve/probe/device_probe.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
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
  auto memory = probe::SharedMemory::make(options_.memory_bytes);
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

Status DeviceProbe::await_ready() {
  if (ready_) return {};
  const int64_t from = clock_.now_ns();
  auto ready = process_->receive(options_.start_ns);
  counts_.start_ns += clock_.now_ns() - from;
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

Status DeviceProbe::place(const ProbeJob& job, std::string* message) {
  Message m;
  m.type = Type::kJob;
  m.job.name = job.name;
  m.job.plan = job.plan;
  m.job.axes = job.axes;
  m.job.timed_launches = job.timed_launches;
  m.job.race = job.race;
  m.job.race.pacer.clear();
  int64_t top = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t at = top;
    top = (top + bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  m.job.cubin_bytes = static_cast<int64_t>(job.cubin.size());
  m.job.cubin_at = take(m.job.cubin_bytes);
  m.job.pacer_bytes = static_cast<int64_t>(job.race.pacer.size());
  m.job.pacer_at = take(m.job.pacer_bytes);
  arg_at_.clear();
  for (const ProbeJob::Arg& a : job.args) {
    if (a.role != dispatch::ArgRole::kOut && static_cast<int64_t>(a.data.size()) != a.bytes)
      return dispatch::invalid("probe job " + job.name + ": argument " + std::to_string(arg_at_.size()) +
                               " has " + std::to_string(a.data.size()) + " bytes of data, not " +
                               std::to_string(a.bytes));
    arg_at_.push_back(take(a.bytes));
    m.job.args.push_back({a.role, a.bytes, arg_at_.back()});
  }
  if (top > options_.memory_bytes)
    return dispatch::busy("probe job " + job.name + ": " + std::to_string(top) +
                          " bytes, ProbeOptions::memory_bytes is " + std::to_string(options_.memory_bytes));
  const probe::SharedMemory& memory = *process_->memory;
  if (!job.cubin.empty()) std::memcpy(memory.at(m.job.cubin_at), job.cubin.data(), job.cubin.size());
  if (!job.race.pacer.empty())
    std::memcpy(memory.at(m.job.pacer_at), job.race.pacer.data(), job.race.pacer.size());
  for (size_t i = 0; i < job.args.size(); ++i)
    if (!job.args[i].data.empty())
      std::memcpy(memory.at(arg_at_[i]), job.args[i].data.data(), job.args[i].data.size());
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

void DeviceProbe::read_outputs(const ProbeJob& job, ProbeOutcome* o) const {
  o->outputs.resize(job.args.size());
  for (size_t i = 0; i < job.args.size(); ++i) {
    if (job.args[i].role == dispatch::ArgRole::kIn) continue;
    const uint8_t* from = process_->memory->at(arg_at_[i]);
    o->outputs[i].assign(from, from + job.args[i].bytes);
  }
}

// One job's messages, the watchdog in between.
ProbeOutcome DeviceProbe::converse(const ProbeJob& job) {
  ProbeOutcome o;
  Permit permit;
  int64_t granted_at = 0;
  bool stood_still = false;
  std::string step = "start";
  for (;;) {
    const int64_t limit =
        permit ? granted_at + permit.burst_ns + options_.grace_ns - clock_.now_ns() : options_.quiet_ns;
    const int64_t asked_at = clock_.now_ns();
    auto m = process_->receive(limit);
    const int64_t now = clock_.now_ns();
    if (!m.ok()) {
      const bool late = m.status().code() == dispatch::Code::kBusy;
      if (late && permit && now < granted_at + permit.burst_ns + options_.grace_ns) continue;
      // Woken far too late, this process stood still, and the other one with it (a session that pauses): once more.
      if (late && now > asked_at + std::max<int64_t>(limit, 0) + kStoodStillNs && !stood_still) {
        stood_still = true;
        if (permit) granted_at = now - permit.burst_ns;
        continue;
      }
      const bool under_permit = static_cast<bool>(permit);
      ProbeOutcome end;
      if (late && under_permit) {
        ++counts_.hung;
        end = kill(ProbeEnd::kHung, step + " of " + job.name + " was not done " +
                                        std::to_string((now - granted_at - permit.burst_ns) / kMs) +
                                        " ms after its permit of " + std::to_string(permit.burst_ns / 1000) +
                                        " us");
      } else {
        ++counts_.died;
        // A message that makes no sense comes from a process that a candidate has got hold of.
        end = kill(late ? ProbeEnd::kUndecided : ProbeEnd::kDied,
                   step + " of " + job.name + ": " + m.status().message());
      }
      if (under_permit) permits_.revoke(permit);
      end.bursts = o.bursts;
      return end;
    }
    switch (m->type) {
      case Type::kAsk: {
        step = m->text;
        permit = wait_for_permit(m->ns);
        counts_.waited_ns += clock_.now_ns() - now;
        if (!permit) {
          o.text = "no permit within " + std::to_string(options_.permit_wait_ns / kMs) + " ms for " + step;
          process_.reset();
          return o;
        }
        granted_at = clock_.now_ns();
        stood_still = false;
        ++o.bursts;
        ++counts_.bursts;
        Message granted;
        granted.type = Type::kPermit;
        granted.ns = permit.burst_ns;
        (void)process_->send(granted);  // a process that is gone is found out by the next receive
        break;
      }
      case Type::kReturned:
        if (permit) {
          permits_.give_back(permit);
          counts_.burst_ns += now - granted_at;
        }
        permit = {};
        break;
      case Type::kResult: {
        if (permit) permits_.give_back(permit);
        o.end = m->end;
        o.text = m->text;
        o.launch_us = m->launch_us;
        o.form_us = std::move(m->form_us);
        if (o.end == ProbeEnd::kRan) read_outputs(job, &o);
        counts_.out_of_bounds += o.end == ProbeEnd::kOutOfBounds ? 1 : 0;
        if (o.end != ProbeEnd::kFault) return o;
        ++counts_.faulted;  // its context is lost
        ProbeOutcome end = kill(ProbeEnd::kFault, o.text);
        end.bursts = o.bursts;
        return end;
      }
      default:
        ++counts_.died;
        if (permit) permits_.revoke(permit);
        return kill(ProbeEnd::kDied, step + " of " + job.name + ": a message out of turn");
    }
  }
}

ProbeOutcome DeviceProbe::run(const ProbeJob& job) {
  ProbeOutcome o;
  Status s;
  if (counts_.stuck > 0)
    s = dispatch::device_error("a killed probe is still there: the device is left alone");
  if (s.ok() && process_ == nullptr) s = spawn();
  if (s.ok()) s = await_ready();
  std::string message;
  if (s.ok()) s = place(job, &message);
  if (s.ok()) s = process_->channel.send(message, kSendTimeoutMs);
  if (!s.ok()) {
    if (s.code() == dispatch::Code::kNotFound) process_.reset();
    o.text = s.message();
    return o;
  }
  return converse(job);
}

}  // namespace niche::evolve
