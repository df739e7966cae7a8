#include "evolve/judge/cell.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "evolve/judge/cell_server.h"

namespace niche::evolve::judge {
namespace {

// Objects travel as anonymous files: nothing on disk can be swapped under us.
struct ObjectFiles {
  std::vector<int> fds;
  ~ObjectFiles() {
    for (int fd : fds) close(fd);
  }
};

dispatch::Status write_object(std::span<const uint8_t> bytes, std::vector<int>& fds) {
  const int fd = memfd_create("niche-kernel", MFD_CLOEXEC);
  if (fd < 0) return dispatch::errno_status("memfd for a kernel");
  fds.push_back(fd);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return dispatch::errno_status("write a kernel's object");
    done += static_cast<size_t>(n);
  }
  return {};
}

const char* stage_text(Stage s) {
  switch (s) {
    case Stage::kFallback:
      return "in the library form";
    case Stage::kPack:
      return "in the pack entry";
    case Stage::kKernel:
      return "in the kernel";
    case Stage::kLoading:
      return "while loading";
    default:
      return "in the harness";
  }
}

}  // namespace

dispatch::Result<std::unique_ptr<Cell>> Cell::make(const CellSpec& spec) {
  ObjectFiles files;
  for (const auto& object : spec.objects) NICHE_RETURN_IF_ERROR(write_object(object, files.fds));
  auto c = std::unique_ptr<Cell>(new Cell());
  c->arena_ = spec.arena;
  *spec.arena->mailbox<CellReply>(kCellReplyAt) = {};
  auto child = Child::fork([&](int channel) { CellServer(spec).run(channel, files.fds); });
  if (!child.ok()) return child.status();
  c->child_ = std::move(*child);
  // The first answer says that everything is loaded and the walls are up.
  if (!c->run(60)) return dispatch::device_error("cell: " + c->death_.text);
  const CellReply& r = c->reply();
  if (r.failed != 0) return dispatch::corrupt(std::string("cell: ") + r.text);
  c->confinement_ = r.text;
  return c;
}

bool Cell::run(double cpu_seconds_max) {
  auto* crash = arena_->mailbox<CrashPage>(kCrashAt);
  crash->stage = static_cast<uint32_t>(Stage::kIdle);
  crash->signal = 0;
  crash->syscall = 0;
  const CallEnd end = child_->call({cpu_seconds_max, 60 + 30 * cpu_seconds_max});
  if (end == CallEnd::kAnswered) return true;
  death_ = {};
  death_.stage = static_cast<Stage>(crash->stage);
  death_.hung = end == CallEnd::kHung;
  const std::string where = stage_text(death_.stage);
  if (death_.hung) {
    death_.text = "no end within " + std::to_string(cpu_seconds_max) + " s of CPU time " + where;
    return false;
  }
  const int signal = crash->signal != 0 ? crash->signal : child_->end_signal();
  death_.text = (crash->signal != 0 ? "signal " + std::to_string(signal) + " (" + strsignal(signal) + ")"
                                    : child_->end_text()) +
                " " + where;
  if (signal == SIGSYS) death_.text = "system call " + std::to_string(crash->syscall) + " " + where;
  death_.has_address = signal == SIGSEGV || signal == SIGBUS;
  death_.address = crash->address;
  return false;
}

}  // namespace niche::evolve::judge
