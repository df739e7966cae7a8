#include "dispatch/group_board.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

namespace niche::dispatch {
namespace {

constexpr uint64_t kMagic = 0x31647262'6e6963ULL;  // "nicbrd1"

struct File {
  int fd = -1;
  ~File() {
    if (fd < 0) return;
    (void)::flock(fd, LOCK_UN);  // closing would not do: the mapping keeps the file, and with it the lock
    ::close(fd);
  }
};

}  // namespace

// All zero is an empty board.
struct SharedMemoryBoard::Layout {
  uint64_t magic, ranks;
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
  struct stat st {};
  if (::fstat(f.fd, &st) != 0) return errno_status("fstat " + path);
  const bool fresh = st.st_size == 0;
  if (fresh && ::ftruncate(f.fd, sizeof(Layout)) != 0) return errno_status("ftruncate " + path);
  if (!fresh && st.st_size != static_cast<off_t>(sizeof(Layout)))
    return corrupt("group board " + path + ": " + std::to_string(st.st_size) + " bytes, not " +
                   std::to_string(sizeof(Layout)));
  void* p = ::mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
  if (p == MAP_FAILED) return errno_status("mmap " + path);
  auto* layout = static_cast<Layout*>(p);  // zero bytes of a file are its initial value
  std::unique_ptr<SharedMemoryBoard> board(new SharedMemoryBoard(layout));
  if (fresh) {
    layout->ranks = static_cast<uint64_t>(ranks);
    layout->magic = kMagic;
  } else if (layout->magic != kMagic) {
    return corrupt("group board " + path + ": not a board");
  } else if (layout->ranks != static_cast<uint64_t>(ranks)) {
    return invalid("group board " + path + ": of " + std::to_string(layout->ranks) + " ranks, not " +
                   std::to_string(ranks));
  }
  return board;
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
