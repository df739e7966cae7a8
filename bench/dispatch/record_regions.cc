// record_regions: times of real kernels over a variable axis, for `regret`: conv1d (1 x 96 x L, 96 outputs, 3
// taps, fp32) at each prompt length L of a trace. Kernels are points of the CPU template families, compiled
// here; the library is oneDNN, once with plain layouts and once with blocked ones (both conversions in the
// call).
//
//   record_regions --trace FILE --out FILE [--kernels 6] [--points 8] [--length-max 4096] [--every 1] [--jobs 1]
//
// One thread, by its own CPU time; `--jobs N` forks N processes, each on a CPU of its own with every N-th length:
// for machines whose cores are free. A round times every subject once at a length, in random order; each time is
// the second least of five rounds, two independent times a subject: decisions are made by the first, judged by
// the second. The kernels
// kept are those that together lose least at eight lengths, of the families' seeds and `points` random ones a
// family.
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <unordered_map>

#include "bench/dispatch/trace.h"
#include "bench/ops_cpu/kernels.h"
#include "dispatch/devices/cpu/cpu_info.h"
#include "evolve/session/session.h"
#include "runtime/ops/cpu/families.h"
#include "runtime/ops/cpu/gemm_families.h"

// Of the OpenMP runtime that oneDNN may have been built with.
extern "C" [[gnu::weak]] void omp_set_num_threads(int);

namespace {

using namespace niche;
using namespace niche::dispatch;

constexpr int64_t kChannels = 96, kTaps = 3;

std::shared_ptr<const OpSchema> conv1d_schema() {
  auto s = std::make_shared<OpSchema>();
  s->op = "conv1d";
  s->axes = {{"B", AxisKind::kVar},    {"L", AxisKind::kVar},   {"Ci", AxisKind::kConst},
             {"Co", AxisKind::kConst}, {"K", AxisKind::kConst}, {"Lo", AxisKind::kDerived}};
  s->args = {{"x", ArgRole::kIn, "T", {0, 2, 1}},
             {"weight", ArgRole::kIn, "T", {3, 2, 4}, false, true},
             {"bias", ArgRole::kIn, "T", {3}, true, true},
             {"y", ArgRole::kOut, "T", {0, 3, 5}}};
  s->attrs = {{"padding", 1}, {"has_bias", 0}};
  s->dtypes = {"f32"};
  return s;
}

// A convolution of oneDNN at one length: primitives made beforehand, as a cache hit would find them.
class OneDnnConv {
 public:
  OneDnnConv(const dnnl::engine& engine, int64_t length, bool blocked, float* x, float* w, float* y)
      : engine_(engine), stream_(engine) {
    using tag = dnnl::memory::format_tag;
    using dt = dnnl::memory::data_type;
    const dnnl::memory::dims xd{1, kChannels, length}, wd{kChannels, kChannels, kTaps}, yd = xd, one{1},
                                                                                        pad{1};
    const tag layout = blocked ? tag::any : tag::ncw;
    const dnnl::memory::desc xm(xd, dt::f32, layout), wm(wd, dt::f32, tag::any), ym(yd, dt::f32, layout);
    const auto forward = dnnl::prop_kind::forward_inference;
    const auto algorithm = dnnl::algorithm::convolution_auto;
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::convolution_forward::primitive_desc pd(engine, forward, algorithm, xm, wm, ym, one, pad, pad);
#else
    const dnnl::convolution_forward::desc d(forward, algorithm, xm, wm, ym, one, pad, pad);
    const dnnl::convolution_forward::primitive_desc pd(d, engine);
#endif
    conv_ = dnnl::convolution_forward(pd);
    plain_x_ = dnnl::memory({xd, dt::f32, tag::ncw}, engine, x);
    plain_y_ = dnnl::memory({yd, dt::f32, tag::ncw}, engine, y);
    dnnl::memory plain_w({wd, dt::f32, tag::oiw}, engine, w);
    w_ = dnnl::memory(pd.weights_desc(), engine);
    dnnl::reorder(plain_w, w_).execute(stream_, plain_w, w_);
    x_ = pd.src_desc() == plain_x_.get_desc() ? plain_x_ : dnnl::memory(pd.src_desc(), engine);
    y_ = pd.dst_desc() == plain_y_.get_desc() ? plain_y_ : dnnl::memory(pd.dst_desc(), engine);
    if (x_ != plain_x_) in_ = dnnl::reorder(plain_x_, x_);
    if (y_ != plain_y_) out_ = dnnl::reorder(y_, plain_y_);
    stream_.wait();
  }
  void run() {
    if (x_ != plain_x_) in_.execute(stream_, plain_x_, x_);
    conv_.execute(stream_, {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, w_}, {DNNL_ARG_DST, y_}});
    if (y_ != plain_y_) out_.execute(stream_, y_, plain_y_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::convolution_forward conv_;
  dnnl::reorder in_, out_;
  dnnl::memory plain_x_, plain_y_, x_, w_, y_;
};

// Random floats on a line of their own: kernels may ask for the alignment of at::empty.
class Floats {
 public:
  Floats(int64_t n, std::mt19937* rng) : memory_(static_cast<size_t>(n) + 16) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& f : memory_) f = uniform(*rng);
  }
  float* data() { return memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) / 4 % 16; }

 private:
  std::vector<float> memory_;
};

// What this thread has run, in µs: what else the machine does takes no part in it.
double cpu_us() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e6 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_nsec);
}

// Interruptions and cold caches only ever add.
double second_least(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + 1, v.end());
  return v[1];
}

int fail(const std::string& what) {
  std::fprintf(stderr, "record_regions: %s\n", what.c_str());
  return 1;
}

// The n-th of the CPUs that the process may use.
void pin(size_t n) {
  cpu_set_t all, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  n %= static_cast<size_t>(CPU_COUNT(&all));
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &all) && n-- == 0) CPU_SET(i, &one);
  (void)sched_setaffinity(0, sizeof one, &one);
}

// Runs `part(job, file)` in `jobs` processes and appends the lines that they wrote, by the number that they start
// with. False: one of them failed, or is killed.
bool in_processes(size_t jobs, FILE* out, const std::function<void(size_t, FILE*)>& part) {
  std::vector<std::pair<pid_t, std::string>> children;
  bool ok = true;
  for (size_t j = 0; j < jobs; ++j) {
    char name[] = "/tmp/niche_record_part_XXXXXX";
    const int fd = mkstemp(name);
    if (fd < 0) return false;
    const pid_t pid = fork();
    if (pid == 0) {
      pin(j);
      FILE* f = fdopen(fd, "w");
      part(j, f);
      _exit(std::fclose(f) == 0 ? 0 : 1);
    }
    close(fd);
    ok &= pid > 0;
    if (pid > 0) children.push_back({pid, name});
  }
  std::map<long, std::string> lines;
  for (const auto& [pid, name] : children) {
    int status = 0;
    ok &= waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    std::ifstream in(name);
    for (std::string line; std::getline(in, line);) lines[std::atol(line.c_str())] = line;
    unlink(name.c_str());
  }
  for (const auto& [length, line] : lines) std::fprintf(out, "%s\n", line.c_str());
  return ok;
}

int run(int argc, char** argv) {
  std::string trace, out;
  size_t kernels_max = 6;
  int points = 8;
  int64_t length_max = 4096;
  size_t every = 1, jobs = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string a = argv[i], v = argv[i + 1];
    if (a == "--trace")
      trace = v;
    else if (a == "--out")
      out = v;
    else if (a == "--kernels")
      kernels_max = static_cast<size_t>(std::atoi(v.c_str()));
    else if (a == "--points")
      points = std::max(0, std::atoi(v.c_str()));
    else if (a == "--length-max")
      length_max = std::atoll(v.c_str());
    else if (a == "--jobs")
      jobs = static_cast<size_t>(std::clamp(std::atoi(v.c_str()), 1, 256));
    else if (a == "--every")
      every = static_cast<size_t>(std::max(1, std::atoi(v.c_str())));
    else
      return fail("what is '" + a + "'?");
  }
  if (trace.empty() || out.empty()) return fail("--trace FILE and --out FILE are needed");
  auto stream = bench::read_prompt_lengths(trace);
  if (!stream.ok()) return fail(stream.status().to_string());
  std::vector<int64_t> lengths;
  for (const int64_t l : *stream)
    if (l <= length_max) lengths.push_back(l);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());

  auto definition =
      *Definition::make(conv1d_schema(), kF32, {{"Ci", kChannels}, {"Co", kChannels}, {"K", kTaps}});
  std::mt19937 rng(1);
  Floats w(kChannels * kChannels * kTaps, &rng), x(kChannels * length_max, &rng),
      y(kChannels * length_max, &rng);
  void* p[4] = {x.data(), w.data(), nullptr, y.data()};
  long axes[6] = {1, 0, kChannels, kChannels, kTaps, 0};
  const auto args = [&](int64_t length) {
    axes[1] = axes[5] = static_cast<long>(length);
    return NicheKernelArgs{p, axes, definition->attrs().data(), nullptr, nullptr};
  };

  char scratch[] = "/tmp/niche_record_XXXXXX";
  if (mkdtemp(scratch) == nullptr) return fail("mkdtemp");
  auto toolchain = evolve::CppToolchain::find("", scratch);
  if (!toolchain.ok()) return fail(toolchain.status().to_string());
  evolve::FamilyRegistry families;
  ops_cpu::add_conv1d_direct(families);
  ops_cpu::add_conv1d_winograd(families);
  auto loaded = bench::load_kernels(families, **toolchain, evolve::detect_target(1), *definition, points);
  std::filesystem::remove_all(scratch);
  if (!loaded.ok()) return fail(loaded.status().to_string());
  std::vector<bench::LoadedKernel> kernels;
  for (bench::LoadedKernel& k : *loaded) {
    // A column for each length: those that take some lengths alone stay out.
    const bool takes_all = std::all_of(lengths.begin(), lengths.end(), [&](int64_t l) {
      const int64_t var[] = {1, l, kChannels, kChannels, kTaps, l};
      return k.limits().holds(*definition, var);
    });
    if (!takes_all) continue;
    k.bind(*definition, args(256));
    kernels.push_back(std::move(k));
  }
  std::fprintf(stderr, "%zu of %zu kernels take all %zu lengths\n", kernels.size(), loaded->size(),
               lengths.size());
  if (kernels.empty()) return fail("no kernel takes every length of the trace");

  const auto time_us = [&](const std::function<void()>& f, int repeats) {
    const double t0 = cpu_us();
    for (int i = 0; i < repeats; ++i) f();
    return (cpu_us() - t0) / repeats;
  };
  // Two independent figures a subject, each the second least of five, in µs.
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto measure = [&](int64_t length, const std::vector<size_t>& who) {
    OneDnnConv plain(engine, length, false, x.data(), w.data(), y.data());
    OneDnnConv blocked(engine, length, true, x.data(), w.data(), y.data());
    std::vector<std::function<void()>> subjects{[&] { plain.run(); }, [&] { blocked.run(); }};
    for (const size_t k : who) subjects.push_back([&, k] { kernels[k].run(args(length)); });
    std::vector<std::vector<double>> samples(subjects.size());
    std::vector<int> repeats;
    for (auto& s : subjects) s(), repeats.push_back(std::clamp(static_cast<int>(200 / time_us(s, 1)), 1, 50));
    std::vector<size_t> order(subjects.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (int round = 0; round < 10; ++round) {
      std::shuffle(order.begin(), order.end(), rng);
      for (const size_t s : order) samples[s].push_back(time_us(subjects[s], repeats[s]));
    }
    std::vector<std::pair<double, double>> us;
    for (auto& s : samples)
      us.push_back({second_least({s.begin(), s.begin() + 5}), second_least({s.begin() + 5, s.end()})});
    return us;
  };

  // Which kernels: greedily, each the one that lowers the sum of the best relative times most.
  std::vector<size_t> all(kernels.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  std::vector<std::vector<double>> relative;
  for (size_t i = 0; i < 8; ++i) {
    const auto us = measure(lengths[(2 * i + 1) * lengths.size() / 16], all);
    double best = 1e300;
    for (const auto& t : us) best = std::min(best, t.first);
    relative.emplace_back();
    for (size_t k = 2; k < us.size(); ++k) relative.back().push_back(us[k].first / best);
  }
  std::vector<size_t> chosen;
  std::vector<double> best_so_far(relative.size(), 1e9);
  while (chosen.size() < std::min(kernels_max, kernels.size())) {
    size_t pick = 0;
    double least = 1e300;
    for (const size_t k : all) {
      double sum = 0;
      for (size_t i = 0; i < relative.size(); ++i) sum += std::min(best_so_far[i], relative[i][k]);
      if (std::count(chosen.begin(), chosen.end(), k) == 0 && sum < least) least = sum, pick = k;
    }
    chosen.push_back(pick);
    for (size_t i = 0; i < relative.size(); ++i) best_so_far[i] = std::min(best_so_far[i], relative[i][pick]);
  }

  FILE* f = std::fopen(out.c_str(), "w");
  if (f == nullptr) return fail("cannot write " + out);
  std::fprintf(
      f,
      "# conv1d 1x%ldxL, %ld outputs, %ld taps, padding 1, fp32, one thread: µs of its CPU time, two "
      "independent figures, each the second least of five\n",
      static_cast<long>(kChannels), static_cast<long>(kChannels), static_cast<long>(kTaps));
  const std::string compiler = (*toolchain)->version();
  std::fprintf(f, "# %s; %s; oneDNN %d.%d.%d; %s\n", CpuInfo::detect().model_name.c_str(),
               compiler.substr(0, compiler.find(" -O")).c_str(), DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR,
               DNNL_VERSION_PATCH, NICHE_COMMIT);
  std::fprintf(f, "L,library:onednn plain,library:onednn blocked");
  for (const size_t k : chosen) std::fprintf(f, ",%s", kernels[k].name().c_str());
  std::fprintf(f, "\n");
  std::fflush(f);
  const bool whole = in_processes(jobs, f, [&](size_t job, FILE* part) {
    for (size_t i = job * every; i < lengths.size(); i += every * jobs) {
      std::fprintf(part, "%ld", static_cast<long>(lengths[i]));
      for (const auto& [a, b] : measure(lengths[i], chosen)) std::fprintf(part, ",%.4g;%.4g", a, b);
      std::fprintf(part, "\n");
      if (job == 0 && i / every / jobs % 16 == 0) std::fprintf(stderr, "\r%zu of %zu", i, lengths.size());
    }
  });
  std::fprintf(stderr, "\n");
  if (std::fclose(f) != 0) return fail("cannot write " + out);
  return whole ? 0 : fail("a part failed: " + out + " lacks its lengths");
}

}  // namespace

int main(int argc, char** argv) {
  if (omp_set_num_threads != nullptr) omp_set_num_threads(1);
  return run(argc, argv);
}
