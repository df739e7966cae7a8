// Shared by the kernels_cache tests: a scratch directory, records, a disk that fails on demand.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>

#include "kernels_cache/kernel_cache.h"
#include "kernels_cache/sha256.h"

namespace niche::kernels_cache {

inline constexpr int64_t kSecond = 1'000'000'000;
inline constexpr int64_t kMinute = 60 * kSecond;

class ScratchDirectory {
 public:
  ScratchDirectory() {
    // In memory where there is such a place: power cuts are simulated, and a real fsync a step costs minutes.
    const bool shm = ::access("/dev/shm", W_OK) == 0;
    const std::filesystem::path base = shm ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string pattern = (base / "niche-cache-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~ScratchDirectory() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline Environment test_environment() {
  Environment e;
  e.device_class = "cpu";
  e.device_model = "Test CPU (family 25, model 1)";
  e.isa_flags = {"avx2", "fma"};
  e.libraries = {"torch 2.11.0"};
  e.compiler = "g++ 12.2.0";
  return e;
}

// A valid record whose contents depend on `n` alone.
inline KernelRecord test_record(int n, size_t artefact_bytes = 2000) {
  std::mt19937 random(static_cast<unsigned>(n) + 1);
  KernelRecord r;
  r.name = "rms_norm.f32.rows.p" + std::to_string(n) + ".avx2";
  r.op = "rms_norm";
  r.definition = "rms_norm.f32.N" + std::to_string(64 * (n % 7 + 1));
  r.definition_json = "{\"op\": \"rms_norm\"}";
  r.guard.var_count = 2;
  r.guard.var[0] = {1, 4096, 1};
  r.guard.var[1] = {8, 1 << 20, 8};
  r.guard.alignment_bytes = 32;
  r.plan.phases = {{"niche_k", {{0, 4}, {2, 128}}, 2}, {"niche_k_finish", {}, 7}};
  r.plan.pack_symbol = "niche_pack";
  r.plan.packed_bytes = 4096;
  r.plan.workspace_bytes = 12345;
  r.properties = {true, n % 2 == 0, true};
  r.provenance = {"rms_norm.rows", "rows=2 unroll=4", "s1", "g++ 12.2.0 -O3", "ab" + std::to_string(n)};
  r.source = "extern \"C\" void niche_k() {}  // " + std::to_string(n);
  r.artefact.resize(artefact_bytes);
  for (uint8_t& b : r.artefact) b = static_cast<uint8_t>(random());
  r.artefact_sha256 = to_hex(sha256(r.artefact));
  r.verdict_json = "{\"status\": \"FASTER\"}";
  r.fallback_ns = 1000 + n;
  r.kernel_ns = 500;
  r.fallback_name = "addmm";
  r.created_unix_ns = 1'000 * kSecond + n;
  return r;
}

inline void expect_equal(const KernelRecord& a, const KernelRecord& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.definition, b.definition);
  EXPECT_EQ(a.definition_json, b.definition_json);
  EXPECT_EQ(a.kind, b.kind);
  ASSERT_EQ(a.guard.var_count, b.guard.var_count);
  for (size_t i = 0; i < static_cast<size_t>(a.guard.var_count); ++i) {
    EXPECT_EQ(a.guard.var[i].lo, b.guard.var[i].lo);
    EXPECT_EQ(a.guard.var[i].hi, b.guard.var[i].hi);
    EXPECT_EQ(a.guard.var[i].multiple_of, b.guard.var[i].multiple_of);
  }
  EXPECT_EQ(a.guard.alignment_bytes, b.guard.alignment_bytes);
  ASSERT_EQ(a.plan.phases.size(), b.plan.phases.size());
  for (size_t i = 0; i < a.plan.phases.size(); ++i) {
    EXPECT_EQ(a.plan.phases[i].symbol, b.plan.phases[i].symbol);
    EXPECT_EQ(a.plan.phases[i].parallel_min_tasks, b.plan.phases[i].parallel_min_tasks);
    ASSERT_EQ(a.plan.phases[i].factors.size(), b.plan.phases[i].factors.size());
    for (size_t f = 0; f < a.plan.phases[i].factors.size(); ++f) {
      EXPECT_EQ(a.plan.phases[i].factors[f].axis, b.plan.phases[i].factors[f].axis);
      EXPECT_EQ(a.plan.phases[i].factors[f].divisor, b.plan.phases[i].factors[f].divisor);
    }
  }
  EXPECT_EQ(a.plan.pack_symbol, b.plan.pack_symbol);
  EXPECT_EQ(a.plan.packed_bytes, b.plan.packed_bytes);
  EXPECT_EQ(a.plan.workspace_bytes, b.plan.workspace_bytes);
  EXPECT_EQ(a.properties.deterministic, b.properties.deterministic);
  EXPECT_EQ(a.properties.batch_invariant, b.properties.batch_invariant);
  EXPECT_EQ(a.properties.capturable, b.properties.capturable);
  EXPECT_EQ(a.provenance.family, b.provenance.family);
  EXPECT_EQ(a.provenance.parameters, b.provenance.parameters);
  EXPECT_EQ(a.provenance.session, b.provenance.session);
  EXPECT_EQ(a.provenance.compiler, b.provenance.compiler);
  EXPECT_EQ(a.provenance.source_hash, b.provenance.source_hash);
  EXPECT_EQ(a.source, b.source);
  EXPECT_EQ(a.artefact, b.artefact);
  EXPECT_EQ(a.artefact_sha256, b.artefact_sha256);
  EXPECT_EQ(a.verdict_json, b.verdict_json);
  EXPECT_EQ(a.fallback_ns, b.fallback_ns);
  EXPECT_EQ(a.kernel_ns, b.kernel_ns);
  EXPECT_EQ(a.fallback_name, b.fallback_name);
  EXPECT_EQ(a.created_unix_ns, b.created_unix_ns);
}

// A disk that fails at a chosen step and remembers what a power cut would lose.
//
// Steps are the calls that change the disk (open for writing, write, sync, rename, remove, mkdir), counted
// from 1.
//  kError: step `at` fails with the given error text, later ones work.
//  kTorn:  the write at step `at` puts down half its bytes and fails; later steps work.
//  kCrash: step `at` and all later ones fail, as if the process were gone (no clean-up happens on disk).
// power_cut() then takes away what was never synced: unsynced files are cut to a random length, a rename
// whose directory was not synced is undone at random.
class FaultyFiles final : public Files {
 public:
  enum class Fault { kNone, kError, kTorn, kCrash };

  void arm(Fault fault, int at, std::string error = "No space left on device") {
    fault_ = fault;
    at_ = at;
    steps_ = 0;
    error_ = std::move(error);
  }
  int steps() const { return steps_; }
  void fail_contents(bool on) { fail_contents_ = on; }  // reads of files
  void fail_reads(bool on) { fail_listings_ = fail_contents_ = on; }

  dispatch::Result<int> open(int dir, const std::string& name, int flags, mode_t mode) override {
    const bool writes = (flags & O_CREAT) != 0;
    if (writes && step() != Outcome::kGo) return dispatch::io_error("open " + name + ": " + error_);
    auto fd = real_.open(dir, name, flags, mode);
    if (fd.ok() && writes) {
      opened_[*fd] = {dir, name};
      unsynced_.insert({dir, name});
    }
    return fd;
  }
  void close(int fd) override {
    opened_.erase(fd);
    real_.close(fd);
  }
  dispatch::Result<struct ::stat> stat(int fd) override { return real_.stat(fd); }
  dispatch::Status make_directory(int dir, const std::string& name, mode_t mode) override {
    if (step() != Outcome::kGo) return dispatch::io_error("mkdir " + name + ": " + error_);
    return real_.make_directory(dir, name, mode);
  }
  dispatch::Result<size_t> write(int fd, const void* data, size_t bytes) override {
    const Outcome o = step();
    if (o == Outcome::kTorn) {
      auto written = real_.write(fd, data, bytes / 2);
      if (!written.ok()) return written;
    }
    if (o != Outcome::kGo) return dispatch::io_error("write: " + error_);
    return real_.write(fd, data, std::min<size_t>(bytes, 1500));  // short writes are the rule here
  }
  dispatch::Result<size_t> read_at(int fd, void* data, size_t bytes, int64_t offset) override {
    if (fail_contents_) return dispatch::io_error("read: Input/output error");
    return real_.read_at(fd, data, bytes, offset);
  }
  dispatch::Status sync(int fd) override {
    if (step() != Outcome::kGo) return dispatch::io_error("fsync: " + error_);
    if (auto it = opened_.find(fd); it != opened_.end()) unsynced_.erase(it->second);
    std::erase_if(unsynced_renames_, [&](const Rename& r) { return r.dir == fd; });
    return real_.sync(fd);
  }
  dispatch::Status rename(int dir, const std::string& from, const std::string& to) override {
    if (step() != Outcome::kGo) return dispatch::io_error("rename " + from + ": " + error_);
    std::string before;
    const bool existed = read_all(dir, to, &before);
    auto status = real_.rename(dir, from, to);
    if (status.ok()) {
      unsynced_renames_.push_back({dir, to, existed, before});
      if (unsynced_.erase({dir, from}) > 0) unsynced_.insert({dir, to});
    }
    return status;
  }
  dispatch::Status remove(int dir, const std::string& name) override {
    if (step() != Outcome::kGo) return dispatch::io_error("unlink " + name + ": " + error_);
    return real_.remove(dir, name);
  }
  dispatch::Result<std::vector<std::string>> list(int dir) override {
    if (fail_listings_) return dispatch::io_error("readdir: Input/output error");
    return real_.list(dir);
  }
  dispatch::Result<bool> try_lock(int fd) override { return real_.try_lock(fd); }

  // Directory descriptors must still be open.
  void power_cut(std::mt19937& random) {
    for (const auto& [dir, name] : unsynced_) {
      const int fd = ::openat(dir, name.c_str(), O_RDWR | O_CLOEXEC);
      if (fd < 0) continue;
      struct ::stat st;
      if (::fstat(fd, &st) == 0 && st.st_size > 0) {
        EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(random() % static_cast<unsigned>(st.st_size))), 0);
      }
      ::close(fd);
    }
    for (auto it = unsynced_renames_.rbegin(); it != unsynced_renames_.rend(); ++it) {
      if (random() % 2 == 0) continue;
      ::unlinkat(it->dir, it->to.c_str(), 0);
      if (!it->existed) continue;
      const int fd = ::openat(it->dir, it->to.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
      EXPECT_EQ(::write(fd, it->before.data(), it->before.size()), static_cast<ssize_t>(it->before.size()));
      ::close(fd);
    }
    unsynced_.clear();
    unsynced_renames_.clear();
  }

 private:
  enum class Outcome { kGo, kFail, kTorn };
  struct Rename {
    int dir;
    std::string to;
    bool existed;
    std::string before;
  };

  Outcome step() {
    ++steps_;
    if (fault_ == Fault::kError && steps_ == at_) return Outcome::kFail;
    if (fault_ == Fault::kTorn && steps_ == at_) return Outcome::kTorn;
    if (fault_ == Fault::kCrash && steps_ >= at_) return steps_ == at_ ? Outcome::kTorn : Outcome::kFail;
    return Outcome::kGo;
  }
  static bool read_all(int dir, const std::string& name, std::string* to) {
    const int fd = ::openat(dir, name.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    char buffer[4096];
    for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;) to->append(buffer, static_cast<size_t>(n));
    ::close(fd);
    return true;
  }

  Files& real_ = posix_files();
  Fault fault_ = Fault::kNone;
  int at_ = 0, steps_ = 0;
  bool fail_listings_ = false, fail_contents_ = false;
  std::string error_;
  std::map<int, std::pair<int, std::string>> opened_;
  std::set<std::pair<int, std::string>> unsynced_;
  std::vector<Rename> unsynced_renames_;
};

// A cache over a scratch directory with a clock the test moves.
class CacheTest : public ::testing::Test {
 protected:
  CacheOptions options() {
    CacheOptions o;
    o.root = scratch_.path() + "/cache";
    o.environment = test_environment();
    o.boot_id = "boot-1";
    o.now_unix_ns = [this] { return now_; };
    o.log = [this](const std::string& line) { log_.push_back(line); };
    return o;
  }
  std::unique_ptr<KernelCache> open(CacheOptions o) {
    auto cache = KernelCache::open(std::move(o));
    EXPECT_TRUE(cache.ok()) << cache.status().to_string();
    return cache.ok() ? std::move(*cache) : nullptr;
  }
  std::unique_ptr<KernelCache> open() { return open(options()); }
  static std::string entry_path(const KernelCache& cache, const KernelId& id) {
    return cache.kernels()->path() + "/" + id.file_name();
  }
  static uint64_t misses(const KernelCache& cache, MissReason reason) {
    return cache.counters().misses[static_cast<size_t>(reason)];
  }

  ScratchDirectory scratch_;
  int64_t now_ = 2'000'000 * kSecond;
  std::vector<std::string> log_;
};

}  // namespace niche::kernels_cache
