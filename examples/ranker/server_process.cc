#include "examples/ranker/server_process.h"

#include <fcntl.h>
#include <httplib.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <fstream>
#include <thread>

extern char** environ;

namespace ranker {
namespace {

using niche::dispatch::internal;
using niche::dispatch::Result;
using niche::dispatch::Status;
using Clock = std::chrono::steady_clock;

constexpr auto kStartLimit = std::chrono::seconds(60);
constexpr auto kStopLimit = std::chrono::seconds(10);
constexpr auto kPoll = std::chrono::milliseconds(20);

// Waits for the child's end until `limit`; its status, or nothing.
bool reap(pid_t pid, Clock::duration limit, int* status) {
  const auto end = Clock::now() + limit;
  for (;;) {
    if (waitpid(pid, status, WNOHANG) == pid) return true;
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace

std::string tail_of(const std::string& path, size_t lines) {
  std::ifstream in(path);
  std::deque<std::string> last;
  for (std::string line; std::getline(in, line);) {
    last.push_back(line);
    if (last.size() > lines) last.pop_front();
  }
  std::string text;
  for (const std::string& line : last) text += "\n  " + line;
  return text;
}

Result<std::unique_ptr<ServerProcess>> ServerProcess::start(const std::string& program,
                                                            std::vector<std::string> args,
                                                            const std::string& directory) {
  const std::string port_file = directory + "/port";
  ::unlink(port_file.c_str());
  auto server = std::unique_ptr<ServerProcess>(new ServerProcess());
  server->log_file_ = directory + "/server.log";
  for (const char* extra : {"--port", "0", "--port-file"}) args.emplace_back(extra);
  args.push_back(port_file);
  args.insert(args.end(), {"--parent", std::to_string(::getpid())});
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (std::string& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 1, server->log_file_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  const int error = posix_spawn(&server->pid_, program.c_str(), &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) {
    server->pid_ = -1;
    errno = error;
    return niche::dispatch::errno_status("start " + program);
  }

  for (const auto end = Clock::now() + kStartLimit; Clock::now() < end; std::this_thread::sleep_for(kPoll)) {
    if (!server->alive())
      return internal("the server ended while it started; its log ends:" + tail_of(server->log_file_, 8));
    if (std::ifstream in(port_file); in >> server->port_ && server->get("/health").ok()) return server;
  }
  return internal("the server did not listen within 60 s; its log ends:" + tail_of(server->log_file_, 8));
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) (void)stop().ok();
}

bool ServerProcess::alive() {
  int status = 0;
  if (pid_ <= 0) return false;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  pid_ = -1;
  return false;
}

Result<std::string> ServerProcess::get(const std::string& path) const {
  httplib::Client http("127.0.0.1", port_);
  http.set_read_timeout(60);
  const auto answer = http.Get(path);
  if (!answer) return niche::dispatch::io_error("GET " + path + ": " + httplib::to_string(answer.error()));
  if (answer->status != 200)
    return niche::dispatch::io_error("GET " + path + ": status " + std::to_string(answer->status) + ": " +
                                     answer->body);
  return answer->body;
}

Status ServerProcess::post(const std::string& path) const {
  httplib::Client http("127.0.0.1", port_);
  http.set_read_timeout(60);
  const auto answer = http.Post(path, "", "text/plain");
  if (!answer) return niche::dispatch::io_error("POST " + path + ": " + httplib::to_string(answer.error()));
  if (answer->status != 200)
    return niche::dispatch::io_error("POST " + path + ": status " + std::to_string(answer->status) + ": " +
                                     answer->body);
  return {};
}

Status ServerProcess::stop() {
  if (pid_ <= 0) return {};
  const pid_t pid = pid_;
  pid_ = -1;
  int status = 0;
  ::kill(pid, SIGTERM);
  if (!reap(pid, kStopLimit, &status)) {
    ::kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return internal("the server did not end within 10 s of SIGTERM; its log ends:" + tail_of(log_file_, 8));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return internal("the server ended with " +
                  (WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                       : "code " + std::to_string(WEXITSTATUS(status))) +
                  "; its log ends:" + tail_of(log_file_, 8));
}

}  // namespace ranker
