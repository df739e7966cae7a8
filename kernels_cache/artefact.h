// open_artefact: a verified kernel's code as a descriptor to load from.
//
// The bytes were read once; their SHA-256 is compared here, and the very same bytes go into a sealed memfd
// (an unnamed O_TMPFILE where memfd is refused): nobody can change between check and load what was checked.
//
// Thread-safety: functions are safe; an Artefact has one owner. Cost: SHA-256 of the bytes (0.8 ns a byte) +
// some 20 µs.
#pragma once

#include <string>

#include "dispatch/base/status.h"
#include "kernels_cache/record.h"

namespace niche::kernels_cache {

class Artefact {
 public:
  explicit Artefact(int fd) : fd_(fd) {}
  Artefact(Artefact&& o) noexcept : fd_(o.fd_) { o.fd_ = -1; }
  Artefact& operator=(Artefact&&) = delete;
  ~Artefact();  // closes; what was loaded from it stays loaded

  int fd() const { return fd_; }
  // A path for dlopen, different for each call in this process. glibc remembers libraries by the text of
  // their path: "/proc/self/fd/7" would return the library that was loaded from an earlier descriptor 7.
  std::string load_path() const;

 private:
  int fd_;
};

// kCorrupt: the bytes are not what the record names. kIo: no memory file could be made.
dispatch::Result<Artefact> open_artefact(const KernelRecord& record);

}  // namespace niche::kernels_cache
