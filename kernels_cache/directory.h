// Directory: one directory of the cache, held open, that belongs to this process's user (or root) and that
// nobody else may write to; files in it are written whole or not at all.
//
// Thread-safety: const after open; calls from several threads and processes are safe (a write is one atomic
// rename). Cost: write_atomic is open + write + fsync + rename + fsync of the directory: 0.1 to some 10 ms by
// disk. Control plane.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels_cache/files.h"

namespace niche::kernels_cache {

enum class Access : uint8_t { kReadOnly, kReadWrite };

// Durable: survives a power cut once the call returned. Replaceable: atomic for readers, may be lost or torn
// by a power cut; for what can be rebuilt and carries a checksum (the index).
enum class Durability : uint8_t { kDurable, kReplaceable };

class Directory {
 public:
  // Opens `path`; with kReadWrite creates what is missing, mode 0700. kNotFound: not there (read-only).
  // kUnsupported: belongs to somebody else or is writable by group or others; the message names path, owner
  // and mode.
  static dispatch::Result<Directory> open(Files& files, const std::string& path, Access access);
  // Any directory, whoever may write to it: for archives, whose file is checked when it is opened.
  static dispatch::Result<Directory> open_anywhere(Files& files, const std::string& path);
  dispatch::Result<Directory> child(const std::string& name, Access access) const;

  // Writes the concatenation of `parts` as file `name`. On failure the old file, if any, is unchanged, and
  // the temporary one is removed where the disk still allows it.
  dispatch::Status write_atomic(const std::string& name,
                                std::initializer_list<std::span<const uint8_t>> parts,
                                Durability durability = Durability::kDurable) const {
    return write_atomic(name, std::span<const std::span<const uint8_t>>(parts.begin(), parts.size()),
                        durability);
  }
  dispatch::Status write_atomic(const std::string& name, std::span<const std::span<const uint8_t>> parts,
                                Durability durability = Durability::kDurable) const;

  struct OpenFile {
    OwnedFd fd;
    int64_t bytes = 0;
    int64_t modified_ns = 0;
  };
  // Opens a regular file that obeys the rule above (owner, mode, no link). kNotFound; kUnsupported: breaks
  // the rule.
  dispatch::Result<OpenFile> open_file(const std::string& name) const;
  // Reads exactly `bytes` at `offset`; kCorrupt when the file ends before.
  dispatch::Status read_exactly(const OpenFile& file, void* to, size_t bytes, int64_t offset,
                                const std::string& name) const;
  // The whole file; kCorrupt when it is longer than `bytes_max`.
  dispatch::Result<std::vector<uint8_t>> read(const std::string& name, int64_t bytes_max) const;

  dispatch::Result<std::vector<std::string>> list() const;  // without temporary files
  // Durable. kNotFound when it is not there.
  dispatch::Status remove(const std::string& name) const;
  dispatch::Result<int64_t> modified_ns() const;  // of the directory: changes when an entry comes or goes
  // A name that list() hides and remove_leftovers() finds, unique among processes, containers and threads.
  static std::string temporary_name();
  // Removes temporary files that writers which died left behind, older than an hour. Returns how many.
  int remove_leftovers(int64_t now_unix_ns) const;

  Files& files() const { return *files_; }
  int fd() const { return fd_->get(); }
  const std::string& path() const { return path_; }

 private:
  Directory(Files& files, OwnedFd fd, std::string path)
      : files_(&files), fd_(std::make_shared<OwnedFd>(std::move(fd))), path_(std::move(path)) {}
  static dispatch::Result<Directory> adopt(Files& files, int parent, const std::string& name,
                                           const std::string& full_path, bool ours_alone);
  Files* files_;
  std::shared_ptr<OwnedFd> fd_;
  std::string path_;
};

}  // namespace niche::kernels_cache
