#include "runtime/http_server.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <httplib.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/threads.h"

namespace niche {

namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kConnectionsMax = 16;
constexpr time_t kSilenceSeconds = 1;  // a client that says nothing for so long is given up
constexpr auto kTalkMax = std::chrono::seconds(5);
constexpr auto kLookEvery = std::chrono::milliseconds(250);

// The port that a connection came in by; 0: no connected TCP socket.
int own_port(int fd) {
  sockaddr_storage own{}, other{};
  socklen_t size = sizeof own, other_size = sizeof other;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0)
    return 0;
  if (own.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in*>(&own)->sin_port);
  if (own.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&own)->sin6_port);
  return 0;
}

// Calls see(fd, number) for each of this process's connections that came in by `port`. The descriptor is a duplicate: it
// stays what it is whatever its owner does meanwhile. What the others are is asked of their paths: they are not ours to use.
template <typename See>
void each_connection(int port, See see) {
  DIR* all = opendir("/proc/self/fd");
  if (all == nullptr) return;
  while (const dirent* entry = readdir(all)) {
    struct stat st {};
    if (fstatat(dirfd(all), entry->d_name, &st, 0) != 0 || !S_ISSOCK(st.st_mode)) continue;
    const int fd = fcntl(std::atoi(entry->d_name), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) continue;
    if (fstat(fd, &st) == 0 && own_port(fd) == port) see(fd, st.st_ino);
    ::close(fd);
  }
  closedir(all);
}

// httplib's pool, which ends talks that have had a thread for too long once every thread has one. httplib bounds each
// silence and not the whole, and does not say which descriptor a talk has: it is the one connection that was not there
// before. enqueue() and on_idle() come from the listener's thread.
class BoundedPool final : public httplib::TaskQueue {
 public:
  explicit BoundedPool(const std::atomic<int>& port) : port_(port), pool_(kConnectionsMax) {}

  void enqueue(std::function<void()> run) override {
    const auto talk = std::make_shared<Talk>();
    {
      const std::lock_guard lock(mutex_);
      each_connection(port_, [&](int, ino_t number) {
        for (const auto& t : talks_)
          if (t->socket == number) return;
        talk->socket = number;
      });
      talks_.push_back(talk);
    }
    pool_.enqueue([this, talk, run = std::move(run)] {
      {
        const std::lock_guard lock(mutex_);
        talk->since = SteadyClock::now();
      }
      run();
      const std::lock_guard lock(mutex_);
      talks_.remove(talk);
    });
    on_idle();
  }

  void on_idle() override {
    const std::lock_guard lock(mutex_);
    if (talks_.size() < kConnectionsMax) return;
    const auto now = SteadyClock::now();
    const auto too_long = [&](const auto& t) { return t->since && now - *t->since > kTalkMax; };
    if (std::none_of(talks_.begin(), talks_.end(), too_long)) return;
    each_connection(port_, [&](int fd, ino_t number) {
      for (const auto& t : talks_)
        if (t->socket == number && too_long(t)) ::shutdown(fd, SHUT_RDWR);
    });
  }

  void shutdown() override { pool_.shutdown(); }

 private:
  struct Talk {
    ino_t socket = 0;
    std::optional<SteadyClock::time_point> since;  // it has a thread
  };
  const std::atomic<int>& port_;
  httplib::ThreadPool pool_;
  std::mutex mutex_;
  std::list<std::shared_ptr<Talk>> talks_;  // with a thread, and waiting for one
};

}  // namespace

struct HttpServer::Impl {
  httplib::Server server;
  Handler handler;
  std::atomic<int> port{0};
  std::thread thread;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

dispatch::Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& address, Handler handler) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const int port = std::stoi(address.substr(colon + 1));  // config validated the form
  auto impl = std::make_unique<Impl>();
  impl->handler = std::move(handler);
  impl->server.new_task_queue = [raw = impl.get()] { return new BoundedPool(raw->port); };
  impl->server.set_idle_interval(kLookEvery);
  impl->server.set_read_timeout(kSilenceSeconds);
  impl->server.set_write_timeout(kSilenceSeconds);
  impl->server.set_keep_alive_timeout(kSilenceSeconds);  // counts for the first request too
  impl->server.set_keep_alive_max_count(1);  // a thread for each request in turn, not for each client
  // httplib's default lets a second process listen on the same port, each getting some of the requests.
  impl->server.set_socket_options([](socket_t s) {
    const int yes = 1;
    ::setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  impl->server.Get(".*", [raw = impl.get()](const httplib::Request& request, httplib::Response& response) {
    HttpReply reply = raw->handler(request.path);
    response.status = reply.code;
    response.set_content(std::move(reply.body), reply.type.c_str());
  });
  if (port == 0) {
    impl->port = impl->server.bind_to_any_port(host.c_str());
  } else if (impl->server.bind_to_port(host.c_str(), port)) {
    impl->port = port;
  }
  if (impl->port <= 0) return dispatch::errno_status("http_address '" + address + "': bind");
  impl->thread = std::thread([raw = impl.get()] {
    core::name_thread("niche-http");
    raw->server.listen_after_bind();
  });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() {
  // stop() does nothing to a listener that does not listen yet.
  while (!impl_->server.is_running()) std::this_thread::yield();
  impl_->server.stop();
  impl_->thread.join();
}

int HttpServer::port() const { return impl_->port; }

}  // namespace niche
