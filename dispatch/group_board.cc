#include "dispatch/group_board.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>

namespace niche::dispatch {
namespace {

constexpr uint64_t kMagic = 0x32647262'6e6963ULL;  // "nicbrd2"

struct File {
  int fd = -1;
  ~File() {
    if (fd < 0) return;
    (void)::flock(fd, LOCK_UN);  // closing would not do: the mapping keeps the file, and with it the lock
    ::close(fd);
  }
};

}  // namespace

// All zero is an empty board, but for its first two words. `magic` is written last: without it, nobody uses the
// file yet.
struct SharedMemoryBoard::Layout {
  std::atomic<uint64_t> magic;
  uint64_t ranks;
  // A line of its own: every rank reads it at every step.
  alignas(64) std::atomic<uint64_t> words[2];
  struct alignas(64) Rank {
    std::atomic<uint64_t> words[4];
  } rank[kRanksMax];
  struct Payload {
    uint64_t bytes;
    uint8_t data[kPayloadBytesMax];
  } payload[2];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "the words are shared between processes");

Result<std::unique_ptr<SharedMemoryBoard>> SharedMemoryBoard::open(const std::string& path, int ranks) {
  if (ranks < 1 || ranks > kRanksMax)
    return invalid("group board " + path + ": " + std::to_string(ranks) + " ranks, 1 to " +
                   std::to_string(kRanksMax) + " are possible");
  File f{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (f.fd < 0) return errno_status("open " + path);
  if (::flock(f.fd, LOCK_EX) != 0) return errno_status("flock " + path);
  NICHE_RETURN_IF_ERROR(make_room(f.fd, path));
  void* p = ::mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
  if (p == MAP_FAILED) return errno_status("mmap " + path);
  auto* layout = static_cast<Layout*>(p);  // zero bytes of a file are its initial value
  std::unique_ptr<SharedMemoryBoard> board(new SharedMemoryBoard(layout));
  const uint64_t magic = layout->magic.load();
  if (magic == 0) {
    const auto* bytes = static_cast<const uint8_t*>(p);
    if (std::any_of(bytes + offsetof(Layout, words), bytes + sizeof(Layout),
                    [](uint8_t b) { return b != 0; }))
      return corrupt("group board " + path + ": holds something else");
    layout->ranks = static_cast<uint64_t>(ranks);
    layout->magic.store(kMagic);
  } else if (magic != kMagic) {
    return corrupt("group board " + path + ": not a board, or another version's");
  } else if (layout->ranks != static_cast<uint64_t>(ranks)) {
    return invalid("group board " + path + ": of " + std::to_string(layout->ranks) + " ranks, not " +
                   std::to_string(ranks));
  }
  return board;
}

// Under the file's lock. A file that has no magic yet is new, or its maker was killed on the way.
Status SharedMemoryBoard::make_room(int fd, const std::string& path) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return errno_status("fstat " + path);
  uint64_t magic = 0;
  if (::pread(fd, &magic, sizeof magic, 0) < 0) return errno_status("read " + path);
  constexpr auto kBytes = static_cast<off_t>(sizeof(Layout));
  if (st.st_size > kBytes || (st.st_size < kBytes && magic != 0))
    return corrupt("group board " + path + ": " + std::to_string(st.st_size) + " bytes, not " +
                   std::to_string(kBytes));
  if (magic != 0) return {};
  const int error = ::posix_fallocate(fd, 0, kBytes);
  if (error == 0) return {};
  (void)::ftruncate(fd, st.st_size);  // what it got of it goes back
  errno = error;
  return errno_status("group board " + path + ": no room for its " + std::to_string(kBytes) + " bytes");
}

SharedMemoryBoard::~SharedMemoryBoard() { ::munmap(layout_, sizeof(Layout)); }

int SharedMemoryBoard::ranks() const { return static_cast<int>(layout_->ranks); }

uint64_t SharedMemoryBoard::load(Word w) const { return layout_->words[static_cast<int>(w)].load(); }
void SharedMemoryBoard::store(Word w, uint64_t value) { layout_->words[static_cast<int>(w)].store(value); }
bool SharedMemoryBoard::compare_exchange(Word w, uint64_t expected, uint64_t value) {
  return layout_->words[static_cast<int>(w)].compare_exchange_strong(expected, value);
}
uint64_t SharedMemoryBoard::load(RankWord w, int rank) const {
  return layout_->rank[rank].words[static_cast<int>(w)].load();
}
void SharedMemoryBoard::store(RankWord w, int rank, uint64_t value) {
  layout_->rank[rank].words[static_cast<int>(w)].store(value);
}

void SharedMemoryBoard::write_payload(uint64_t version, std::span<const uint8_t> bytes) {
  auto& p = layout_->payload[version % 2];
  p.bytes = std::min(bytes.size(), kPayloadBytesMax);
  std::memcpy(p.data, bytes.data(), p.bytes);
}
std::vector<uint8_t> SharedMemoryBoard::read_payload(uint64_t version) const {
  const auto& p = layout_->payload[version % 2];
  return {p.data, p.data + std::min<uint64_t>(p.bytes, kPayloadBytesMax)};
}

}  // namespace niche::dispatch
