#include "evolve/probe/probe_main.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>

#include "evolve/probe/device_run.h"
#include "evolve/probe/permit_span.h"
#include "evolve/probe/probe_protocol.h"
#include "evolve/probe/shared_memory.h"
#include "evolve/worker/frame_channel.h"

namespace niche::evolve {
namespace {

using dispatch::Result;
using dispatch::Status;
using probe::Message;
using Type = Message::Type;

constexpr int kNotOurs = 64, kNonsense = 65;
constexpr int kSendTimeoutMs = 10'000;
// Whoever grants cuts it to what it gives: 300 us between a server's requests, more on a device that nobody else uses.
constexpr int64_t kAskNs = 20'000'000;
constexpr int kWaitMs = 3'600'000;  // a probe that wants nothing for an hour has forgotten us

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The gate's far end: permits are asked for over the channel, and kept while they last.
class ChannelBursts final : public probe::Bursts {
 public:
  ChannelBursts(worker::FrameChannel& channel, const probe::SharedMemory& memory)
      : channel_(channel), memory_(memory) {}
  Result<int64_t> begin(size_t job, std::string_view step, int64_t needs_ns) override {
    probe::write_note(memory_.at(0), job, step);
    const int64_t needs = std::clamp<int64_t>(needs_ns, 1, probe::kBurstNs);
    if (!span_.fits(needs, now_ns())) {
      give_back();
      NICHE_RETURN_IF_ERROR(ask());
    }
    const int64_t now = now_ns();
    span_.begin(now);
    return span_.left(now);
  }
  void end() override { span_.end(now_ns()); }
  void give_back() override {
    if (!span_.held()) return;
    Message returned;
    returned.type = Type::kReturned;
    returned.ns = span_.give_back();
    (void)channel_.send(probe::encode(returned), kSendTimeoutMs);  // a channel that is dead shows at the next
  }
  int64_t left_ns() const override { return span_.left(now_ns()); }

 private:
  Status ask() {
    Message ask;
    ask.type = Type::kAsk;
    ask.ns = kAskNs;
    NICHE_RETURN_IF_ERROR(channel_.send(probe::encode(ask), kSendTimeoutMs));
    auto text = channel_.receive(kWaitMs);
    if (!text.ok()) return text.status();
    if (!*text) return dispatch::busy("no permit");
    auto m = probe::decode(**text, memory_.bytes());
    if (!m.ok()) return m.status();
    if (m->type != Type::kPermit) return dispatch::corrupt("expected 'permit'");
    span_.take(m->ns, now_ns());
    return {};
  }

  worker::FrameChannel& channel_;
  const probe::SharedMemory& memory_;
  PermitSpan span_;
};

int complain(const Status& s) {
  std::fprintf(stderr, "niche probe: %s\n", s.to_string().c_str());
  return kNonsense;
}

// Empty: the context is sound.
std::string lost_context(const dispatch::CudaDevice& device) {
  const dispatch::CudaDevice::Scope scope(device);
  if (!scope.status().ok()) return scope.status().message();
  const CUresult r = device.driver().cuStreamSynchronize(device.own_stream());
  return dispatch::loses_context(r)
             ? device.driver().check(r, "cuStreamSynchronize", "after a batch").message()
             : "";
}

}  // namespace

Result<std::shared_ptr<const dispatch::CudaDevice>> open_probed_device(const ProbeHooks& hooks, int ordinal) {
  auto d = hooks.driver();
  if (!d.ok()) return d.status();
  auto found = dispatch::CudaInfo::discover(**d);
  if (!found.ok()) return found.status();
  if (ordinal < 0 || ordinal >= static_cast<int>(found->size()))
    return dispatch::not_found("no CUDA device " + std::to_string(ordinal) + ", " +
                               std::to_string(found->size()) + " are there");
  return dispatch::CudaDevice::open(*d, found->at(static_cast<size_t>(ordinal)));
}

int probe_main(const ProbeHooks& hooks, int ordinal) {
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(probe::kChannelFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) {
    std::fprintf(stderr, "niche probe: is started by niche itself, with a socket at descriptor %d\n",
                 probe::kChannelFd);
    return kNotOurs;
  }
  ::fcntl(probe::kChannelFd, F_SETFD, FD_CLOEXEC);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{0, 0};
  (void)::setrlimit(RLIMIT_CORE, &no_core);
  worker::FrameChannel channel(probe::kChannelFd);
  auto memory = probe::SharedMemory::open(probe::kMemoryFd);
  if (!memory.ok()) return complain(memory.status());
  if ((*memory)->bytes() < probe::StepNote::kBytes)
    return complain(dispatch::corrupt("too little shared memory"));

  auto device = open_probed_device(hooks, ordinal);
  // The library takes seconds to open a device: no burst could hold that.
  std::unique_ptr<LibraryForms> library;
  if (device.ok() && hooks.library) {
    auto made = hooks.library(ordinal);
    if (made.ok())
      library = std::move(*made);
    else
      device = made.status();
  }
  Message ready;
  ready.type = Type::kReady;
  if (device.ok())
    ready.text = (*device)->info().device_class();
  else
    ready.error = device.status().message();
  if (!channel.send(probe::encode(ready), kSendTimeoutMs).ok() || !device.ok()) return 0;

  ChannelBursts bursts(channel, **memory);
  probe::RunState state;
  for (;;) {
    auto text = channel.receive(kWaitMs);
    if (!text.ok()) return text.status().code() == dispatch::Code::kNotFound ? 0 : complain(text.status());
    if (!*text) return 0;
    auto m = probe::decode(**text, (*memory)->bytes());
    if (!m.ok()) return complain(m.status());
    if (m->type != Type::kJobs) return complain(dispatch::corrupt("expected 'jobs'"));
    Message result;
    result.type = Type::kResults;
    const Status s =
        probe::run_on_device({*device, **memory, bursts, library.get(), state}, m->jobs, &result.results);
    if (!s.ok()) return s.code() == dispatch::Code::kNotFound ? 0 : complain(s);
    result.error = lost_context(**device);
    if (!channel.send(probe::encode(result), kSendTimeoutMs).ok()) return 0;
  }
}

}  // namespace niche::evolve
