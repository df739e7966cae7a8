// FrameChannel: whole messages over a stream socket: four bytes of length, little-endian, then that many
// bytes.
//
// What the other end sends is not trusted: a length above 16 MiB is kCorrupt, and the channel is then dead.
// Never raises SIGPIPE. Thread-safety: one owner. Memory: at most one message and what the socket's buffer
// holds.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dispatch/base/status.h"

namespace niche::evolve::worker {

inline constexpr size_t kFrameBytesMax = size_t{16} << 20;

class FrameChannel {
 public:
  explicit FrameChannel(int fd) : fd_(fd) {}  // owns it
  ~FrameChannel();
  FrameChannel(const FrameChannel&) = delete;
  FrameChannel& operator=(const FrameChannel&) = delete;

  // kBusy: not written within the timeout (0: not at once). Once a part of a frame is out, the rest must
  // follow, and a timeout makes the channel dead. kNotFound: the other end is gone. kInvalid: too long.
  dispatch::Status send(std::string_view message, int timeout_ms);
  // The next message; nothing when none came within the timeout. kNotFound: the other end closed, or is gone;
  // kCorrupt: what came is no frame, or the stream ended inside one.
  dispatch::Result<std::optional<std::string>> receive(int timeout_ms);
  int fd() const { return fd_; }

 private:
  dispatch::Status dead(dispatch::Status why) { return death_ = std::move(why); }
  int fd_;
  std::string buffer_;
  dispatch::Status death_;  // not OK: nothing works any more
};

}  // namespace niche::evolve::worker
