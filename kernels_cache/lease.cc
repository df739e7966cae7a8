#include "kernels_cache/lease.h"

#include <fcntl.h>
#include <unistd.h>

#include "kernels_cache/sha256.h"

namespace niche::kernels_cache {
namespace {

using dispatch::busy;
using dispatch::Result;

std::string lease_file(const std::string& definition) {
  return to_hex(sha256(definition)).substr(0, 32) + ".lease";
}

// Is the descriptor still what the name leads to? remove_free_leases unlinks under the lock, so that a
// process that opened the file before may end up with a lock on a file nobody else will ever find.
bool still_named(const Directory& leases, int fd, const std::string& name) {
  auto again = leases.open_file(name);
  auto mine = leases.files().stat(fd);
  if (!again.ok() || !mine.ok()) return false;
  auto theirs = leases.files().stat(again->fd.get());
  return theirs.ok() && theirs->st_ino == mine->st_ino && theirs->st_dev == mine->st_dev;
}

}  // namespace

Result<Lease> Lease::try_acquire(const Directory& leases, const std::string& definition) {
  const std::string name = lease_file(definition);
  for (int attempt = 0; attempt < 8; ++attempt) {
    auto opened = leases.files().open(leases.fd(), name, O_RDWR | O_CREAT, 0600);
    if (!opened.ok()) return opened.status();
    OwnedFd fd(leases.files(), *opened);
    auto locked = leases.files().try_lock(fd.get());
    if (!locked.ok()) return locked.status();
    if (!*locked) {
      char text[128] = {};
      auto n = leases.files().read_at(fd.get(), text, sizeof text - 1, 0);
      return busy("definition '" + definition + "' is being evolved by " +
                  (n.ok() && *n > 0 ? std::string(text, *n) : std::string("another process")));
    }
    if (!still_named(leases, fd.get(), name)) continue;
    const std::string holder = "process " + std::to_string(::getpid()) + "        ";
    auto written =
        leases.files().write(fd.get(), holder.data(), holder.size());  // for people; the lock is what counts
    (void)written;
    return Lease(std::move(fd));
  }
  return busy("lease of definition '" + definition + "': its file kept changing");
}

int remove_free_leases(const Directory& leases) {
  auto names = leases.list();
  if (!names.ok()) return 0;
  int removed = 0;
  for (const std::string& name : *names) {
    if (!name.ends_with(".lease")) continue;
    auto opened = leases.files().open(leases.fd(), name, O_RDWR, 0);
    if (!opened.ok()) continue;
    OwnedFd fd(leases.files(), *opened);
    auto locked = leases.files().try_lock(fd.get());
    if (locked.ok() && *locked) removed += leases.files().remove(leases.fd(), name).ok();
  }
  return removed;
}

}  // namespace niche::kernels_cache
