#include "evolve/worker/frame_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

namespace niche::evolve::worker {
namespace {

using dispatch::Result;
using dispatch::Status;
using SteadyClock = std::chrono::steady_clock;

int ms_left(SteadyClock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
  return static_cast<int>(std::max<int64_t>(0, left));
}

// Waits until the descriptor is ready or the deadline passed; false: passed.
bool wait_for(int fd, short events, SteadyClock::time_point deadline) {
  for (;;) {
    pollfd p{fd, events, 0};
    const int ready = ::poll(&p, 1, ms_left(deadline));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return true;  // the read or write will say what is wrong
  }
}

}  // namespace

FrameChannel::~FrameChannel() {
  if (fd_ >= 0) ::close(fd_);
}

Status FrameChannel::send(std::string_view message, int timeout_ms) {
  if (!death_.ok()) return death_;
  if (message.size() > kFrameBytesMax)
    return dispatch::invalid("worker channel: a message of " + std::to_string(message.size()) + " bytes");
  const auto n = static_cast<uint32_t>(message.size());
  std::string frame{static_cast<char>(n & 0xff), static_cast<char>(n >> 8 & 0xff),
                    static_cast<char>(n >> 16 & 0xff), static_cast<char>(n >> 24)};
  frame += message;
  const auto deadline = SteadyClock::now() + std::chrono::milliseconds(timeout_ms);
  size_t at = 0;
  while (at < frame.size()) {
    const ssize_t wrote = ::send(fd_, frame.data() + at, frame.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote > 0) {
      at += static_cast<size_t>(wrote);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return dead(errno == EPIPE || errno == ECONNRESET
                      ? dispatch::not_found("worker channel: the other end is gone")
                      : dispatch::errno_status("worker channel: send"));
    if (wait_for(fd_, POLLOUT, deadline)) continue;
    const Status late = dispatch::busy("worker channel: the other end does not read");
    return at == 0 ? late : dead(late);
  }
  return {};
}

Result<std::optional<std::string>> FrameChannel::receive(int timeout_ms) {
  if (!death_.ok()) return death_;
  const auto deadline = SteadyClock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    if (buffer_.size() >= 4) {
      uint32_t n = 0;
      for (size_t i = 4; i-- > 0;) n = n << 8 | static_cast<unsigned char>(buffer_[i]);
      if (n > kFrameBytesMax)
        return dead(dispatch::corrupt("worker channel: a frame that claims " + std::to_string(n) + " bytes"));
      if (buffer_.size() >= 4 + static_cast<size_t>(n)) {
        std::optional<std::string> message = buffer_.substr(4, n);
        buffer_.erase(0, 4 + static_cast<size_t>(n));
        return message;
      }
    }
    std::array<char, 65536> chunk;
    const ssize_t got = ::recv(fd_, chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (got > 0) {
      buffer_.append(chunk.data(), static_cast<size_t>(got));
      continue;
    }
    if (got == 0 || errno == ECONNRESET)
      return dead(buffer_.empty() ? dispatch::not_found("worker channel: the other end closed it")
                                  : dispatch::corrupt("worker channel: ended inside a frame, " +
                                                      std::to_string(buffer_.size()) + " bytes left"));
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return dead(dispatch::errno_status("worker channel: receive"));
    if (!wait_for(fd_, POLLIN, deadline)) return std::optional<std::string>();
  }
}

}  // namespace niche::evolve::worker
