// bench/kernels_cache: from process start to evolved kernels, out of a cache of 10,000.
//
//   kernels_cache [--json FILE] [--quick] [--rounds N] [--dir DIR]
//
// Subjects: niche's cache; one SQLite file (records and artefacts as blobs, indexed by calls served); one
// JSON index beside shared objects in files, as compile caches keep them. All hold the same kernels. niche
// checks every byte it uses (SHA-256, flatbuffers verifier, owner and mode); the rivals check nothing. A
// figure is the median over rounds; each round runs every subject in a fresh process, in random order. Cases:
// `first` is until the hottest kernel is loaded (dlopen included), `hot` until the whole hot set (99 % of
// calls) is in memory as verified descriptors; `cold` drops the files from the page cache before. JSON rows:
// {subject, case, entries, hot, ms}.
#include <dlfcn.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels_cache/artefact.h"
#include "kernels_cache/kernel_cache.h"
#include "kernels_cache/sha256.h"

namespace niche::bench {
namespace {

using namespace kernels_cache;
using Clock = std::chrono::steady_clock;

constexpr double kHotShare = 0.99;

[[noreturn]] void die(const std::string& what) {
  std::cerr << "kernels_cache bench: " << what << "\n";
  std::exit(1);
}

std::vector<uint8_t> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The set-up alone: 10,000 fsyncs would measure the disk's patience.
class UnsyncedFiles final : public Files {
 public:
  dispatch::Result<int> open(int d, const std::string& n, int f, mode_t m) override {
    return real_.open(d, n, f, m);
  }
  void close(int fd) override { real_.close(fd); }
  dispatch::Result<struct ::stat> stat(int fd) override { return real_.stat(fd); }
  dispatch::Status make_directory(int d, const std::string& n, mode_t m) override {
    return real_.make_directory(d, n, m);
  }
  dispatch::Result<size_t> write(int fd, const void* p, size_t n) override { return real_.write(fd, p, n); }
  dispatch::Result<size_t> read_at(int fd, void* p, size_t n, int64_t o) override {
    return real_.read_at(fd, p, n, o);
  }
  dispatch::Status sync(int) override { return {}; }
  dispatch::Status rename(int d, const std::string& a, const std::string& b) override {
    return real_.rename(d, a, b);
  }
  dispatch::Status remove(int d, const std::string& n) override { return real_.remove(d, n); }
  dispatch::Result<std::vector<std::string>> list(int d) override { return real_.list(d); }
  dispatch::Result<bool> try_lock(int fd) override { return real_.try_lock(fd); }

 private:
  Files& real_ = posix_files();
};

Environment environment() {
  Environment e;
  e.device_class = "cpu";
  e.device_model = "bench";
  e.compiler = "bench";
  return e;
}

// A kernel of usual size: 16 KB of shared object, 6 KB of source, 2 KB of verdict. Bytes behind an ELF file's
// end do no harm, and make every artefact different.
KernelRecord record(int n, const std::vector<uint8_t>& library) {
  KernelRecord r;
  r.name = "rms_norm.f32.rows.r" + std::to_string(n) + ".avx2";
  r.op = "rms_norm";
  r.definition = "rms_norm.f32.N" + std::to_string(64 * (n % 97 + 1)) + ".eps1e-06";
  r.definition_json = std::string(700, 'j');
  r.guard.var_count = 1;
  r.guard.var[0] = {1, 4096, 1};
  r.plan.phases = {{"niche_answer", {{0, 4}}, 2}};
  r.provenance = {"rms_norm.rows", "rows=2 unroll=4", "session", "g++ 12.2.0", std::to_string(n)};
  r.source = std::string(6000, 's');
  r.verdict_json = std::string(2000, 'v');
  r.artefact = library;
  std::mt19937 random(static_cast<unsigned>(n));
  for (int i = 0; i < 64; ++i) r.artefact.push_back(static_cast<uint8_t>(random()));
  r.artefact_sha256 = to_hex(sha256(r.artefact));
  r.fallback_ns = 2000;
  r.kernel_ns = 1000;
  r.created_unix_ns = n;
  return r;
}

// Calls served by the kernel of rank n: Zipf with exponent 2, so that 99 % of calls go to some 60 kernels.
int64_t served(int n) { return static_cast<int64_t>(1e12 / std::pow(n + 1.0, 2.0)); }

int memory_file(const void* data, size_t bytes) {
  const int fd = ::memfd_create("rival", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, bytes) != static_cast<ssize_t>(bytes)) die("memfd");
  return fd;
}

struct Times {
  double first_ms = 0, hot_ms = 0;
  int hot = 0;
};

struct Stopwatch {
  Clock::time_point start = Clock::now();
  double ms() const { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }
};

void load_library(const std::string& path) {
  if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) die(::dlerror());
}

CacheOptions cache_options(const std::string& dir) {
  CacheOptions o;
  o.root = dir + "/niche";
  o.environment = environment();
  o.access = Access::kReadOnly;
  return o;
}

Times niche_start(const std::string& dir) {
  Times t;
  const Stopwatch watch;
  auto cache = KernelCache::open(cache_options(dir));
  if (!cache.ok()) die(cache.status().to_string());
  std::vector<Artefact> kept;
  for (const KernelId& id : (*cache)->hot_set(kHotShare)) {
    const auto r = (*cache)->load(id);
    if (!r) die("a kernel is missing");
    auto artefact = open_artefact(*r);
    if (!artefact.ok()) die(artefact.status().to_string());
    if (t.hot == 0) {
      load_library(artefact->load_path());
      t.first_ms = watch.ms();
    }
    kept.push_back(std::move(*artefact));
    ++t.hot;
  }
  t.hot_ms = watch.ms();
  return t;
}

void sql(sqlite3* db, const char* text) {
  char* error = nullptr;
  if (sqlite3_exec(db, text, nullptr, nullptr, &error) != SQLITE_OK) die(error);
}

Times sqlite_start(const std::string& dir) {
  Times t;
  const Stopwatch watch;
  sqlite3* db = nullptr;
  if (sqlite3_open_v2((dir + "/kernels.db").c_str(), &db, SQLITE_OPEN_READONLY, nullptr) != SQLITE_OK)
    die("sqlite open");
  sqlite3_stmt* s = nullptr;
  sqlite3_prepare_v2(db, "SELECT sum(served) FROM kernels", -1, &s, nullptr);
  sqlite3_step(s);
  const double total = sqlite3_column_double(s, 0);
  sqlite3_finalize(s);
  sqlite3_prepare_v2(db, "SELECT served, record, artefact FROM kernels ORDER BY served DESC", -1, &s,
                     nullptr);
  double sum = 0;
  while (sum < kHotShare * total && sqlite3_step(s) == SQLITE_ROW) {
    sum += sqlite3_column_double(s, 0);
    const auto* bytes = static_cast<const uint8_t*>(sqlite3_column_blob(s, 1));
    if (!decode_record({bytes, static_cast<size_t>(sqlite3_column_bytes(s, 1))}).ok()) die("sqlite record");
    const int fd = memory_file(sqlite3_column_blob(s, 2), static_cast<size_t>(sqlite3_column_bytes(s, 2)));
    if (t.hot == 0) {
      load_library("/proc/self/fd/" + std::to_string(fd));
      t.first_ms = watch.ms();
    }
    ++t.hot;
  }
  t.hot_ms = watch.ms();
  sqlite3_finalize(s);
  sqlite3_close(db);
  return t;
}

Times json_start(const std::string& dir) {
  Times t;
  const Stopwatch watch;
  std::ifstream in(dir + "/json/index.json");
  const nlohmann::json index = nlohmann::json::parse(in);
  std::vector<std::pair<int64_t, size_t>> order;
  double total = 0;
  for (size_t i = 0; i < index.size(); ++i) {
    order.emplace_back(-index[i]["served"].get<int64_t>(), i);
    total += index[i]["served"].get<double>();
  }
  std::sort(order.begin(), order.end());
  double sum = 0;
  for (const auto& [negative, i] : order) {
    if (sum >= kHotShare * total) break;
    sum -= static_cast<double>(negative);
    const std::string path = dir + "/json/" + index[i]["file"].get<std::string>();
    if (t.hot == 0) {
      load_library(path);
      t.first_ms = watch.ms();
    } else {
      const auto bytes = read_bytes(path);
      memory_file(bytes.data(), bytes.size());
    }
    ++t.hot;
  }
  t.hot_ms = watch.ms();
  return t;
}

void make_subjects(const std::string& dir, int entries, const std::vector<uint8_t>& library) {
  CacheOptions o = cache_options(dir);
  UnsyncedFiles files;
  o.access = Access::kReadWrite;
  o.bytes_max = int64_t{4} << 30;
  o.files = &files;
  auto cache = KernelCache::open(o);
  if (!cache.ok()) die(cache.status().to_string());
  std::filesystem::create_directories(dir + "/json");
  nlohmann::json index = nlohmann::json::array();
  sqlite3* db = nullptr;
  if (sqlite3_open((dir + "/kernels.db").c_str(), &db) != SQLITE_OK) die("sqlite create");
  sql(db,
      "PRAGMA journal_mode=WAL; CREATE TABLE kernels(id TEXT PRIMARY KEY, served INT, record BLOB, artefact "
      "BLOB);"
      "CREATE INDEX by_served ON kernels(served); BEGIN");
  sqlite3_stmt* insert = nullptr;
  sqlite3_prepare_v2(db, "INSERT INTO kernels VALUES(?,?,?,?)", -1, &insert, nullptr);
  std::vector<int> order(static_cast<size_t>(entries));
  for (int i = 0; i < entries; ++i) order[static_cast<size_t>(i)] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(1));  // heat has nothing to do with age
  for (const int n : order) {
    const KernelRecord r = record(n, library);
    if (auto done = (*cache)->commit(r); !done.ok()) die(done.status().to_string());
    const std::string id = kernel_id(r).hex();
    const auto payload = encode_record(r);
    (*cache)->count_served(kernel_id(r), served(n));
    sqlite3_bind_text(insert, 1, id.c_str(), -1, SQLITE_TRANSIENT);
    sqlite3_bind_int64(insert, 2, served(n));
    sqlite3_bind_blob(insert, 3, payload.data(), static_cast<int>(payload.size()), SQLITE_TRANSIENT);
    sqlite3_bind_blob(insert, 4, r.artefact.data(), static_cast<int>(r.artefact.size()), SQLITE_TRANSIENT);
    if (sqlite3_step(insert) != SQLITE_DONE) die("sqlite insert");
    sqlite3_reset(insert);
    std::ofstream(dir + "/json/" + id + ".so", std::ios::binary)
        .write(reinterpret_cast<const char*>(r.artefact.data()),
               static_cast<std::streamsize>(r.artefact.size()));
    index.push_back({{"name", r.name},
                     {"definition", r.definition},
                     {"served", served(n)},
                     {"file", id + ".so"},
                     {"guard", {{"M", {1, 4096}}}},
                     {"source_hash", r.provenance.source_hash},
                     {"parameters", r.provenance.parameters}});
  }
  if (const auto flushed = (*cache)->flush(); !flushed.ok()) die(flushed.to_string());
  sqlite3_finalize(insert);
  sql(db, "COMMIT; PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode=DELETE");
  sqlite3_close(db);
  std::ofstream(dir + "/json/index.json") << index.dump(1);
  ::sync();
}

// Takes a subject's files out of the page cache. Clean pages alone leave: make_subjects synced them.
void make_cold(const std::string& path) {
  for (const auto& e : std::filesystem::recursive_directory_iterator(path)) {
    if (!e.is_regular_file()) continue;
    const int fd = ::open(e.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

Times in_fresh_process(Times (*start)(const std::string&), const std::string& dir) {
  int fds[2];
  if (::pipe(fds) != 0) die("pipe");
  const pid_t pid = ::fork();
  if (pid == 0) {
    const Times t = start(dir);
    if (::write(fds[1], &t, sizeof t) != sizeof t) ::_exit(2);
    ::_exit(0);
  }
  Times t;
  const ssize_t n = ::read(fds[0], &t, sizeof t);
  ::close(fds[0]);
  ::close(fds[1]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (n != sizeof t || status != 0) die("a subject failed");
  return t;
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<long>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// Index by read(2) against mmap: the evidence for index.h's choice.
void index_by_both(const std::string& dir, int rounds, std::map<std::string, std::vector<double>>* ms) {
  std::string path;
  for (const auto& e : std::filesystem::recursive_directory_iterator(dir + "/niche"))
    if (e.path().filename() == kIndexFile) path = e.path();
  for (int i = 0; i < rounds; ++i) {
    {
      const Stopwatch watch;
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      struct ::stat st;
      ::fstat(fd, &st);
      std::vector<uint8_t> bytes(static_cast<size_t>(st.st_size));
      if (::read(fd, bytes.data(), bytes.size()) != st.st_size) die("read");
      const Digest d = sha256(bytes);
      asm volatile("" ::"r"(d.data()) : "memory");
      ::close(fd);
      (*ms)["read"].push_back(watch.ms());
    }
    {
      const Stopwatch watch;
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      struct ::stat st;
      ::fstat(fd, &st);
      void* p =
          ::mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
      const Digest d = sha256({static_cast<const uint8_t*>(p), static_cast<size_t>(st.st_size)});
      asm volatile("" ::"r"(d.data()) : "memory");
      ::munmap(p, static_cast<size_t>(st.st_size));
      ::close(fd);
      (*ms)["mmap"].push_back(watch.ms());
    }
  }
}

int main_of(int argc, char** argv) {
  std::string json_file, dir;
  int rounds = 25, entries = 10'000;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&] {
      return i + 1 < argc ? std::string(argv[++i]) : (die(arg + " needs a value"), std::string());
    };
    if (arg == "--json") {
      json_file = value();
    } else if (arg == "--rounds") {
      rounds = std::max(1, std::atoi(value().c_str()));
    } else if (arg == "--dir") {
      dir = value();
    } else if (arg == "--quick") {
      entries = 1000, rounds = 5;
    } else {
      die("unknown argument " + arg +
          "; usage: kernels_cache [--json FILE] [--quick] [--rounds N] [--dir DIR]");
    }
  }
  std::string pattern =
      (dir.empty() ? std::filesystem::temp_directory_path().string() : dir) + "/niche-bench-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) die("cannot make a directory in " + pattern);
  const struct Cleaner {
    std::string path;
    ~Cleaner() {
      std::error_code ec;
      std::filesystem::remove_all(path, ec);
    }
  } cleaner{pattern};
  make_subjects(pattern, entries, read_bytes(NICHE_BENCH_LIBRARY));

  const struct Subject {
    const char* name;
    Times (*start)(const std::string&);
  } subjects[] = {{"niche", niche_start}, {"sqlite", sqlite_start}, {"json+files", json_start}};
  std::map<std::string, std::map<std::string, std::vector<double>>> ms;  // subject, case
  std::map<std::string, int> hot;
  std::mt19937 random(7);
  for (const bool cold : {false, true}) {
    for (int round = 0; round < rounds; ++round) {
      size_t order[] = {0, 1, 2};
      std::shuffle(std::begin(order), std::end(order), random);
      for (const size_t i : order) {
        if (cold) make_cold(pattern);
        const Times t = in_fresh_process(subjects[i].start, pattern);
        const std::string suffix = cold ? " cold" : "";
        ms[subjects[i].name]["first" + suffix].push_back(t.first_ms);
        ms[subjects[i].name]["hot" + suffix].push_back(t.hot_ms);
        hot[subjects[i].name] = t.hot;
      }
    }
  }
  index_by_both(pattern, rounds, &ms["index only"]);

  nlohmann::json out;
  out["commit"] = NICHE_COMMIT;
  out["entries"] = entries;
  std::printf("%d entries, hot set %d kernels (%.0f %% of calls), median of %d fresh processes, ms\n",
              entries, hot["niche"], 100 * kHotShare, rounds);
  for (const auto& [subject, cases] : ms) {
    for (const auto& [name, values] : cases) {
      std::printf("  %-11s %-10s %8.3f\n", subject.c_str(), name.c_str(), median(values));
      out["rows"].push_back({{"subject", subject},
                             {"case", name},
                             {"entries", entries},
                             {"hot", hot[subject]},
                             {"ms", median(values)}});
    }
  }
  if (!json_file.empty() && !(std::ofstream(json_file) << out.dump(1) << "\n"))
    die("cannot write " + json_file);
  return 0;
}

}  // namespace
}  // namespace niche::bench

int main(int argc, char** argv) { return niche::bench::main_of(argc, argv); }
