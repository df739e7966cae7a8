// GroupBoard: the few words that the ranks of a tensor-parallel group share to agree on a table version.
//
// Roles: every rank reads and writes through its own RankGroup; nobody else. Invariants: (1) words are 64
// bits, sequentially consistent, and compare_exchange decides races; (2) a payload is written before the
// state that announces it, and not again before every rank has taken or dropped that version. Any store with
// get, set and compare-and-set of small values will do (a TCP store of a process group, etcd);
// SharedMemoryBoard is the one for the ranks of one host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::dispatch {

class GroupBoard {
 public:
  static constexpr int kRanksMax = 64;
  static constexpr size_t kPayloadBytesMax = 512 << 10;  // a full GroupTable of the longest names

  enum class Word : uint8_t {
    kState,       // phase and version of the newest proposal
    kSwitchStep,  // the step from which that version serves
  };
  enum class RankWord : uint8_t {
    kPrepared,      // newest version that this rank could serve
    kAcknowledged,  // newest version whose switch this rank waits for
    kSeenAt,        // the step at which it acknowledged
    kTaken,         // the version that this rank serves
  };

  virtual ~GroupBoard() = default;
  virtual int ranks() const = 0;
  virtual uint64_t load(Word w) const = 0;
  virtual void store(Word w, uint64_t value) = 0;
  // False: the word was not `expected`, and did not change.
  virtual bool compare_exchange(Word w, uint64_t expected, uint64_t value) = 0;
  virtual uint64_t load(RankWord w, int rank) const = 0;
  virtual void store(RankWord w, int rank, uint64_t value) = 0;
  // Two places, by the version's parity: what serves and what is proposed.
  virtual void write_payload(uint64_t version, std::span<const uint8_t> bytes) = 0;
  virtual std::vector<uint8_t> read_payload(uint64_t version) const = 0;
};

// A file of 1 MiB mapped by every rank, in /dev/shm say. Its memory is reserved when it is made: a write to a
// page that a full file system does not have would be a SIGBUS, in the middle of a step.
//
// Thread-safety: all methods from several threads and processes. Progress: lock-free. Cost: a load of a word
// that nobody writes is an L1 hit: 1 ns. Reclamation: the mapping goes with the object, the file when
// somebody removes it.
class SharedMemoryBoard final : public GroupBoard {
 public:
  // Makes the file or joins it: whoever comes first sets it up, under a lock on the file. What a process left
  // that was killed while it did so is set up again. kInvalid: ranks outside [1, kRanksMax], or the file is of
  // a group of another size. kCorrupt: not such a file. kIo: errno's text; no room for it, say.
  static Result<std::unique_ptr<SharedMemoryBoard>> open(const std::string& path, int ranks);
  ~SharedMemoryBoard() override;
  SharedMemoryBoard(const SharedMemoryBoard&) = delete;
  SharedMemoryBoard& operator=(const SharedMemoryBoard&) = delete;

  int ranks() const override;
  uint64_t load(Word w) const override;
  void store(Word w, uint64_t value) override;
  bool compare_exchange(Word w, uint64_t expected, uint64_t value) override;
  uint64_t load(RankWord w, int rank) const override;
  void store(RankWord w, int rank, uint64_t value) override;
  void write_payload(uint64_t version, std::span<const uint8_t> bytes) override;
  std::vector<uint8_t> read_payload(uint64_t version) const override;

 private:
  struct Layout;
  static Status make_room(int fd, const std::string& path);
  explicit SharedMemoryBoard(Layout* layout) : layout_(layout) {}
  Layout* const layout_;
};

}  // namespace niche::dispatch
