// ScratchDir: a directory for a compiler's files, which does not outlive whoever made it, even one that was killed.
//
// The owner holds a lock on the directory (flock: it ends with the process). Whoever makes one, and whoever saw an owner die,
// removes those of the same user that nobody holds.
//
// Thread-safety: make() and sweep() from any thread or process; a ScratchDir has one owner.
#pragma once

#include <string>

#include "dispatch/base/status.h"

namespace niche::evolve {

class ScratchDir {
 public:
  ScratchDir() = default;  // none
  ~ScratchDir();           // removes it and what is in it
  ScratchDir(ScratchDir&& other) noexcept;
  ScratchDir& operator=(ScratchDir&& other) noexcept;

  // `parent`: an existing directory; empty: TMPDIR, or /tmp. kIo names what could not be made.
  static dispatch::Result<ScratchDir> make(std::string parent = {});
  // Removes what dead owners left in `parent`; returns how many directories.
  static int sweep(std::string parent = {});

  const std::string& path() const { return path_; }  // absolute where `parent` is; empty for none

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace niche::evolve
