// Random damage to everything that is read from disk: the parser answers with a record or a Miss, and never
// reads outside its buffer (run under the asan preset to see that).
#include "kernels_cache/index.h"
#include "kernels_cache/maintenance.h"
#include "test_support.h"

namespace niche::kernels_cache {
namespace {

const EnvironmentTag kTag = environment_tag(test_environment().canonical_text());

std::vector<uint8_t> damage(std::vector<uint8_t> bytes, std::mt19937& random) {
  const int edits = 1 + static_cast<int>(random() % 6);
  for (int i = 0; i < edits && !bytes.empty(); ++i) {
    const size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0:
        bytes[at] ^= static_cast<uint8_t>(1u << random() % 8);
        break;
      case 1:
        bytes[at] = static_cast<uint8_t>(random());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), 1 + random() % 8,
                     static_cast<uint8_t>(random()));
        break;
      default:  // a plausible but wrong 32-bit number: offsets and lengths are such
        for (size_t b = 0; b < 4 && at + b < bytes.size(); ++b)
          bytes[at + b] = static_cast<uint8_t>((b == 0 ? random() : random() % 2 * 255));
    }
  }
  return bytes;
}

// The buffer ends where the heap block ends, so that a read past it is seen.
std::vector<uint8_t> exact(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

TEST(RecordFuzz, DamagedPayloadsAreRefusedOrValid) {
  std::mt19937 random(1);
  int refused = 0, valid = 0;
  for (int i = 0; i < 40'000; ++i) {
    const auto bytes = exact(damage(encode_record(test_record(i % 16)), random));
    auto record = decode_record(bytes);
    if (!record.ok()) {
      EXPECT_EQ(record.status().code(), dispatch::Code::kCorrupt);
      ++refused;
      continue;
    }
    // What passes can be used: it encodes again to an equal record.
    record->artefact_sha256 = to_hex(sha256(record->artefact));
    ASSERT_TRUE(validate(*record).ok());
    const auto again = decode_record(encode_record(*record));
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(again->name, record->name);
    ++valid;
  }
  EXPECT_GT(refused, 10'000);
  EXPECT_GT(valid, 100);  // damage inside a text is not seen here; the frame's checksum sees it
}

TEST(RecordFuzz, EveryTruncationIsRefused) {
  const auto whole = encode_record(test_record(1));
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::vector<uint8_t> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
    const auto record = decode_record(cut);
    if (record.ok()) {
      EXPECT_EQ(record->name, test_record(1).name);
    }
  }
  const auto entry = *encode_entry(test_record(1), kTag);
  for (size_t n = 0; n < entry.size(); ++n) {
    const std::vector<uint8_t> cut(entry.begin(), entry.begin() + static_cast<ptrdiff_t>(n));
    Miss miss;
    ASSERT_FALSE(decode_entry(cut, kTag, "e", &miss)) << n;
    EXPECT_EQ(miss.reason, MissReason::kTruncated) << n;
  }
}

TEST(SeenFuzz, DamagedListsAreRefusedOrValid) {
  std::mt19937 random(4);
  std::vector<SeenProblem> problems(20);
  for (SeenProblem& p : problems) p.axes[0] = static_cast<int64_t>(random() % 1000);
  const auto whole = encode_seen("rms_norm.f32.N64", problems);
  int refused = 0;
  for (int i = 0; i < 40'000; ++i) {
    Miss miss;
    const auto list = decode_seen(exact(damage(whole, random)), "rms_norm.f32.N64", "s", &miss);
    refused += !list;
    if (!list) {
      EXPECT_FALSE(miss.text.empty());
      continue;
    }
    EXPECT_EQ(list->size(), problems.size());
    for (const SeenProblem& p : *list) EXPECT_GE(p.axes[0], 0);
  }
  EXPECT_GT(refused, 5'000);
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::vector<uint8_t> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
    Miss miss;
    EXPECT_FALSE(decode_seen(cut, "rms_norm.f32.N64", "s", &miss)) << n;
  }
}

TEST(EntryFuzz, NoDamagedEntryIsEverUsed) {
  std::mt19937 random(2);
  const auto whole = *encode_entry(test_record(1, 300), kTag);
  for (int i = 0; i < 40'000; ++i) {
    const auto bytes = exact(damage(whole, random));
    if (bytes == whole) continue;
    Miss miss;
    ASSERT_FALSE(decode_entry(bytes, kTag, "e", &miss)) << "damage " << i << " was accepted";
    EXPECT_FALSE(miss.text.empty());
  }
}

TEST(EntryFuzz, ADirectoryOfDamagedFilesOpens) {
  std::mt19937 random(3);
  ScratchDirectory scratch;
  CacheOptions o;
  o.root = scratch.path() + "/cache";
  o.environment = test_environment();
  for (int round = 0; round < 30; ++round) {
    std::string home;
    {
      auto cache = KernelCache::open(o);
      ASSERT_TRUE(cache.ok()) << cache.status().to_string();
      for (int i = 0; i < 6; ++i) ASSERT_TRUE((*cache)->commit(test_record(i, 300)).ok());
      ASSERT_TRUE((*cache)->standings().quarantine(kernel_ref(test_record(6)), "slow", 1).ok());
      ASSERT_TRUE((*cache)->probation().begin_run(1).ok());
      ASSERT_TRUE((*cache)->probation().mark(kernel_ref(test_record(7)), 1).ok());
      ASSERT_TRUE((*cache)->flush().ok());
      home = (*cache)->home().path();
    }
    for (const auto& e : std::filesystem::recursive_directory_iterator(home)) {
      if (!e.is_regular_file() || e.path().filename() == "environment.txt" || random() % 2 == 0) continue;
      std::vector<uint8_t> bytes(e.file_size());
      const int in = ::open(e.path().c_str(), O_RDONLY | O_CLOEXEC);
      ASSERT_EQ(::read(in, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
      ::close(in);
      bytes = damage(bytes, random);
      const int out = ::open(e.path().c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
      ASSERT_EQ(::write(out, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
      ::close(out);
    }
    auto cache = KernelCache::open(o);
    ASSERT_TRUE(cache.ok()) << cache.status().to_string();
    (*cache)->probation().startup_scan((*cache)->standings(), 2);
    (*cache)->refresh();
    for (int i = 0; i < 6; ++i)
      if (const auto r = (*cache)->load(kernel_id(test_record(i)))) expect_equal(*r, test_record(i, 300));
    EXPECT_EQ((*cache)->standings().state(kernel_id(test_record(6))), StandingState::kQuarantined);
    ASSERT_TRUE((*cache)->standings().forget(kernel_id(test_record(7))).ok());
  }
}

}  // namespace
}  // namespace niche::kernels_cache
