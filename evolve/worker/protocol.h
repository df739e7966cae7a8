// What server and worker say to each other: JSON objects with a "type", in frames (frame_channel.h).
//
//   server -> worker   hello {protocol, abi, version, nice, idle, memory_bytes_max}     first
//   worker -> server   hello {protocol, abi, version}                                   answer, also when
//   they differ server -> worker   start {request}        once server -> worker   stop {}                end
//   at the next candidate server -> worker   paused {seconds}       sent before the worker is continued: time
//   that does not count worker -> server   event {event}          any number; the last is "done" or "failed"
//
// A session for a device also asks for permits (probe/permit_gate.h), one at a time:
//   worker -> server   ask {wanted_ns};  server -> worker   permit {id, burst_ns, retry_after_ns}
//   worker -> server   return {id, burst_ns, used_ns, revoked}
//
// Thread-safety: pure functions. Errors: kCorrupt says what the message was instead.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "dispatch/base/status.h"
#include "evolve/probe/permit_gate.h"
#include "evolve/worker_client.h"

namespace niche::evolve::worker {

inline constexpr int kProtocolVersion = 2;

struct Hello {
  int protocol = kProtocolVersion;
  int abi = 0;          // NICHE_KERNEL_ABI_VERSION of the sender
  std::string version;  // of niche
  // From the server: how the worker is to make itself small.
  int nice = 0;
  bool idle = false;
  int64_t memory_bytes_max = 0;

  std::string to_string() const;  // "niche 0.1.0, protocol 2, kernel ABI 1"
};
Hello own_hello();
// kUnsupported names both sides when they cannot work together.
dispatch::Status check_versions(const Hello& mine, const Hello& theirs);

struct Message {
  enum class Type { kHello, kStart, kStop, kPaused, kEvent, kAsk, kPermit, kReturn };
  Type type = Type::kStop;
  Hello hello;
  SessionRequest request;
  double paused_seconds = 0;
  SessionEvent event;
  Permit permit;          // kPermit: the answer; kReturn: the one that goes back
  int64_t wanted_ns = 0;  // kAsk
  bool revoked = false;   // kReturn: its holder had to be killed
};

std::string encode_hello(const Hello& hello);
std::string encode_start(const SessionRequest& request);
std::string encode_stop();
std::string encode_paused(double seconds);
std::string encode_event(const SessionEvent& event);
std::string encode_ask(int64_t wanted_ns);
std::string encode_permit(const Permit& permit);
std::string encode_return(const Permit& permit, bool revoked);
dispatch::Result<Message> decode(std::string_view text);

}  // namespace niche::evolve::worker
