// MisbehavingServer: an HTTP server on a local port that does to each connection, in turn, what the test
// says: whole answers, cut ones, slow ones, garbage. Raw sockets: no library would agree to do this.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace niche::evolve::proposer {

class MisbehavingServer {
 public:
  // Gets the connected socket and the whole request; the server closes the socket afterwards.
  using Step = std::function<void(int fd, const std::string& request)>;

  MisbehavingServer() {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    ::bind(listener_, reinterpret_cast<sockaddr*>(&at), size);
    ::listen(listener_, 16);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~MisbehavingServer() {
    stop_ = true;
    thread_.join();
    ::close(listener_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // The last step is repeated for ever.
  void then(Step step) {
    const std::lock_guard lock(mutex_);
    steps_.push_back(std::move(step));
  }
  std::vector<std::string> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  bool stopping() const { return stop_; }

  static bool send(int fd, const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return false;
      at += static_cast<size_t>(n);
    }
    return true;
  }
  static std::string head(int status, const std::string& more = "") {
    return "HTTP/1.1 " + std::to_string(status) + " X\r\nConnection: close\r\n" + more + "\r\n";
  }
  // An answer in one piece.
  static Step answer(int status, const std::string& body, const std::string& more = "") {
    return [=](int fd, const std::string&) { send(fd, head(status, more) + body); };
  }

 private:
  void serve() {
    while (!stop_) {
      pollfd p{listener_, POLLIN, 0};
      if (::poll(&p, 1, 20) <= 0) continue;
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      const std::string request = read_request(fd);
      Step step;
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
        if (!steps_.empty()) step = steps_.front();
        if (steps_.size() > 1) steps_.pop_front();
      }
      if (step) step(fd, request);
      ::close(fd);
    }
  }
  static std::string read_request(int fd) {
    std::string r;
    char buffer[4096];
    for (;;) {
      const size_t end = r.find("\r\n\r\n");
      if (end != std::string::npos) {
        const size_t at = r.find("Content-Length: ");
        const size_t length = at == std::string::npos ? 0 : std::stoul(r.substr(at + 16));
        if (r.size() >= end + 4 + length) return r;
      }
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) return r;
      r.append(buffer, static_cast<size_t>(n));
    }
  }

  int listener_ = -1, port_ = 0;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::deque<Step> steps_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

}  // namespace niche::evolve::proposer
