#include "evolve/toolchain/scratch_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

namespace niche::evolve {
namespace {

namespace fs = std::filesystem;
constexpr char kPrefix[] = "niche_scratch_";

std::string or_default(std::string parent) {
  if (!parent.empty()) return parent;
  const char* tmp = std::getenv("TMPDIR");
  return tmp != nullptr && *tmp != 0 ? tmp : "/tmp";
}

int open_directory(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// Whether `path` still is the directory behind `fd`: a sweep may have taken it before it was locked.
bool is_still(const std::string& path, int fd) {
  struct stat named, held;
  return ::stat(path.c_str(), &named) == 0 && ::fstat(fd, &held) == 0 && named.st_ino == held.st_ino &&
         named.st_dev == held.st_dev;
}

}  // namespace

ScratchDir::~ScratchDir() {
  if (fd_ < 0) return;
  std::error_code ignored;  // what is left is swept by the next owner
  fs::remove_all(path_, ignored);
  ::close(fd_);
}

ScratchDir::ScratchDir(ScratchDir&& other) noexcept
    : path_(std::exchange(other.path_, {})), fd_(std::exchange(other.fd_, -1)) {}

ScratchDir& ScratchDir::operator=(ScratchDir&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

dispatch::Result<ScratchDir> ScratchDir::make(std::string parent) {
  parent = or_default(std::move(parent));
  sweep(parent);
  for (;;) {
    ScratchDir d;
    std::string name = parent + "/" + kPrefix + "XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) return dispatch::errno_status("create " + name);
    const int fd = open_directory(name);
    if (fd < 0) {
      if (errno == ENOENT) continue;
      return dispatch::errno_status("open " + name);
    }
    int locked = ::flock(fd, LOCK_EX);
    while (locked != 0 && errno == EINTR) locked = ::flock(fd, LOCK_EX);
    if (locked != 0) {
      const dispatch::Status s = dispatch::errno_status("lock " + name);
      ::close(fd);
      ::rmdir(name.c_str());
      return s;
    }
    if (is_still(name, fd)) {
      d.path_ = std::move(name);
      d.fd_ = fd;
      return d;
    }
    ::close(fd);
  }
}

int ScratchDir::sweep(std::string parent) {
  int removed = 0;
  std::error_code ec;
  for (fs::directory_iterator at(or_default(std::move(parent)), ec), end; !ec && at != end;
       at.increment(ec)) {
    if (!at->path().filename().string().starts_with(kPrefix)) continue;
    const std::string path = at->path().string();
    const int fd = open_directory(path);
    if (fd < 0) continue;
    struct stat found;
    if (::fstat(fd, &found) == 0 && found.st_uid == ::geteuid() && ::flock(fd, LOCK_EX | LOCK_NB) == 0) {
      std::error_code failed;
      fs::remove_all(path, failed);
      removed += !failed;
    }
    ::close(fd);
  }
  return removed;
}

}  // namespace niche::evolve
