#include "kernels_cache/directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <random>

namespace niche::kernels_cache {
namespace {

using dispatch::Code;
using dispatch::corrupt;
using dispatch::io_error;
using dispatch::Result;
using dispatch::Status;
using dispatch::unsupported;

constexpr const char* kTemporary = ".tmp-";
constexpr int64_t kLeftoverAgeNs = int64_t{3600} * 1'000'000'000;
constexpr mode_t kDirectoryMode = 0700;
constexpr mode_t kFileMode = 0600;

// Root is accepted as owner so that a cache may ship in a read-only image; root could do anything anyway.
Status check_trusted(const struct ::stat& st, const std::string& path) {
  char mode[16];
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(st.st_mode & 07777));
  if (st.st_uid != ::geteuid() && st.st_uid != 0)
    return unsupported(path + ": belongs to user " + std::to_string(st.st_uid) + ", not to " +
                       std::to_string(::geteuid()));
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return unsupported(path + ": mode " + mode + " lets group or others write; make it " +
                       (S_ISDIR(st.st_mode) ? "0700" : "0600"));
  return {};
}

int64_t modified(const struct ::stat& st) {
  return int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
}

Status with_name(const Status& s, const std::string& path) { return {s.code(), path + ": " + s.message()}; }

}  // namespace

std::string Directory::temporary_name() {
  static std::atomic<uint64_t> counter{0};
  thread_local std::random_device entropy;
  char text[64];
  std::snprintf(text, sizeof text, "%s%d-%llu-%08x%08x", kTemporary, static_cast<int>(::getpid()),
                static_cast<unsigned long long>(counter.fetch_add(1, std::memory_order_relaxed)), entropy(),
                entropy());
  return text;
}

Result<Directory> Directory::adopt(Files& files, int parent, const std::string& name,
                                   const std::string& full_path, bool ours_alone) {
  auto fd = files.open(parent, name, O_RDONLY | O_DIRECTORY, 0);
  if (!fd.ok()) return with_name(fd.status(), full_path);
  OwnedFd owned(files, *fd);
  auto st = files.stat(owned.get());
  if (!st.ok()) return with_name(st.status(), full_path);
  if (ours_alone) NICHE_RETURN_IF_ERROR(check_trusted(*st, full_path));
  return Directory(files, std::move(owned), full_path);
}

Result<Directory> Directory::open(Files& files, const std::string& path, Access access) {
  if (path.empty()) return dispatch::invalid("cache directory: empty path");
  // The root itself may be reached through a link (~/.cache on another disk); inside it links are not
  // followed.
  std::error_code ec;
  const std::filesystem::path full = std::filesystem::weakly_canonical(path, ec);
  if (ec) return io_error(path + ": " + ec.message());
  if (access == Access::kReadWrite) {
    std::filesystem::path so_far;
    for (const auto& part : full) {
      so_far /= part;
      if (!std::filesystem::exists(so_far, ec))
        NICHE_RETURN_IF_ERROR(files.make_directory(AT_FDCWD, so_far, kDirectoryMode));
    }
  }
  return adopt(files, AT_FDCWD, full.string(), full.string(), /*ours_alone=*/true);
}

Result<Directory> Directory::open_anywhere(Files& files, const std::string& path) {
  std::error_code ec;
  const std::string full = std::filesystem::weakly_canonical(path, ec).string();
  if (ec) return io_error(path + ": " + ec.message());
  return adopt(files, AT_FDCWD, full, full, /*ours_alone=*/false);
}

Result<Directory> Directory::child(const std::string& name, Access access) const {
  const std::string full_path = path_ + "/" + name;
  if (access == Access::kReadWrite) {
    const Status made = files_->make_directory(fd(), name, kDirectoryMode);
    if (!made.ok()) return with_name(made, full_path);
  }
  return adopt(*files_, fd(), name, full_path, /*ours_alone=*/true);
}

Status Directory::write_atomic(const std::string& name, std::span<const std::span<const uint8_t>> parts,
                               Durability durability) const {
  const std::string temporary = temporary_name();
  auto opened = files_->open(fd(), temporary, O_WRONLY | O_CREAT | O_EXCL, kFileMode);
  if (!opened.ok()) return with_name(opened.status(), path_ + "/" + name);
  OwnedFd file(*files_, *opened);

  const auto fill = [&]() -> Status {
    for (std::span<const uint8_t> part : parts) {
      while (!part.empty()) {
        auto n = files_->write(file.get(), part.data(), part.size());
        if (!n.ok()) return n.status();
        if (*n == 0) return io_error("write wrote nothing");
        part = part.subspan(*n);
      }
    }
    if (durability == Durability::kDurable) NICHE_RETURN_IF_ERROR(files_->sync(file.get()));
    file.reset();
    NICHE_RETURN_IF_ERROR(files_->rename(fd(), temporary, name));
    return {};
  };
  const Status filled = fill();
  if (!filled.ok()) {
    file.reset();
    const Status removed = files_->remove(fd(), temporary);  // a leftover is swept by remove_leftovers
    (void)removed;
    return with_name(filled, path_ + "/" + name);
  }
  if (durability == Durability::kDurable) {
    const Status synced = files_->sync(fd());
    if (!synced.ok()) return with_name(synced, path_);
  }
  return {};
}

Result<Directory::OpenFile> Directory::open_file(const std::string& name) const {
  const std::string full_path = path_ + "/" + name;
  // O_NONBLOCK: a fifo planted under this name must not make the open wait.
  auto fd = files_->open(this->fd(), name, O_RDONLY | O_NONBLOCK, 0);
  if (!fd.ok()) return with_name(fd.status(), full_path);
  OpenFile file{OwnedFd(*files_, *fd), 0, 0};
  auto st = files_->stat(file.fd.get());
  if (!st.ok()) return with_name(st.status(), full_path);
  if (!S_ISREG(st->st_mode)) return unsupported(full_path + ": not a regular file");
  NICHE_RETURN_IF_ERROR(check_trusted(*st, full_path));
  file.bytes = st->st_size;
  file.modified_ns = modified(*st);
  return file;
}

Status Directory::read_exactly(const OpenFile& file, void* to, size_t bytes, int64_t offset,
                               const std::string& name) const {
  size_t done = 0;
  while (done < bytes) {
    auto n = files_->read_at(file.fd.get(), static_cast<char*>(to) + done, bytes - done,
                             offset + static_cast<int64_t>(done));
    if (!n.ok()) return with_name(n.status(), path_ + "/" + name);
    if (*n == 0)
      return corrupt(path_ + "/" + name + ": ends at byte " +
                     std::to_string(offset + static_cast<int64_t>(done)) + ", wanted " +
                     std::to_string(offset + static_cast<int64_t>(bytes)));
    done += *n;
  }
  return {};
}

Result<std::vector<uint8_t>> Directory::read(const std::string& name, int64_t bytes_max) const {
  auto file = open_file(name);
  if (!file.ok()) return file.status();
  if (file->bytes > bytes_max)
    return corrupt(path_ + "/" + name + ": " + std::to_string(file->bytes) + " bytes, at most " +
                   std::to_string(bytes_max) + " are read");
  std::vector<uint8_t> bytes(static_cast<size_t>(file->bytes));
  NICHE_RETURN_IF_ERROR(read_exactly(*file, bytes.data(), bytes.size(), 0, name));
  return bytes;
}

Result<std::vector<std::string>> Directory::list() const {
  auto names = files_->list(fd());
  if (!names.ok()) return with_name(names.status(), path_);
  std::erase_if(*names, [](const std::string& n) { return n.starts_with(kTemporary); });
  return names;
}

Status Directory::remove(const std::string& name) const {
  const Status removed = files_->remove(fd(), name);
  if (!removed.ok()) return with_name(removed, path_ + "/" + name);
  return files_->sync(fd());
}

Result<int64_t> Directory::modified_ns() const {
  auto st = files_->stat(fd());
  if (!st.ok()) return with_name(st.status(), path_);
  return modified(*st);
}

int Directory::remove_leftovers(int64_t now_unix_ns) const {
  auto names = files_->list(fd());
  if (!names.ok()) return 0;
  int removed = 0;
  for (const std::string& name : *names) {
    if (!name.starts_with(kTemporary)) continue;
    auto file = open_file(name);
    if (!file.ok()) continue;
    if (file->modified_ns > now_unix_ns - kLeftoverAgeNs) continue;
    removed += files_->remove(fd(), name).ok();
  }
  return removed;
}

}  // namespace niche::kernels_cache
