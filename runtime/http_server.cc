#include "runtime/http_server.h"

#include <httplib.h>

#include <thread>

#include "runtime/threads.h"

namespace niche {

namespace {

constexpr size_t kConnectionsMax = 16;
constexpr time_t kSilenceSeconds = 1;    // a client that says nothing for so long is given up
constexpr time_t kKeepAliveSeconds = 2;  // and one that asks nothing more

}  // namespace

struct HttpServer::Impl {
  httplib::Server server;
  Handler handler;
  int port = 0;
  std::thread thread;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

dispatch::Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& address, Handler handler) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const int port = std::stoi(address.substr(colon + 1));  // config validated the form
  auto impl = std::make_unique<Impl>();
  impl->handler = std::move(handler);
  impl->server.new_task_queue = [] { return new httplib::ThreadPool(kConnectionsMax); };
  impl->server.set_read_timeout(kSilenceSeconds);
  impl->server.set_write_timeout(kSilenceSeconds);
  impl->server.set_keep_alive_timeout(kKeepAliveSeconds);
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
