// niche_live_check OUTDIR [SECONDS [DUTY]]: the whole loop on a GPU, in one process that serves: calls on device tensors
// from a loop of requests; sessions are opened for what is hot, in a worker under permits of this process;
// kernels go through canary to incumbent while the loop runs; every answer is compared with the library's.
// Beside it a captured graph is replayed: it goes on with the kernel that it captured, then has the node swapped
// in place and swapped back. Last, what a call costs beside a bare cuLaunchKernel.
//
// Prints one line an event and a table; OUTDIR/live.json has all figures, OUTDIR/events.txt what the Runtime said.
#include <ATen/ATen.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "dispatch/devices/cuda/graph_swap.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "runtime/cuda/cuda.h"
#include "runtime/handle_state.h"
#include "runtime/ops/cuda/families.h"
#include "runtime/torch/cuda_forms.h"
#include "runtime/torch/torch.h"
#include "runtime/torch/worker.h"

namespace {

using namespace niche;
using json = nlohmann::json;
using Steady = std::chrono::steady_clock;

void die(const std::string& why) {
  std::fprintf(stderr, "live_check: %s\n", why.c_str());
  std::exit(1);
}
template <typename T>
T must(Result<T> r) {
  if (!r.ok()) die(r.status().to_string());
  return std::move(*r);
}
void must(const Status& s) {
  if (!s.ok()) die(s.to_string());
}
double us_since(Steady::time_point start) {
  return std::chrono::duration<double, std::micro>(Steady::now() - start).count();
}

// Lines of the Runtime, with the time since the start; kept and written.
class Events final : public dispatch::LogSink {
 public:
  explicit Events(const std::string& path) : file_(path) {}
  void write(dispatch::LogLevel, std::string_view part, std::string_view text) override {
    const std::lock_guard lock(mutex_);
    const double at = us_since(start_) / 1e6;
    file_ << at << ' ' << part << ' ' << text << std::endl;
    std::printf("[%7.2f] %.*s\n", at, static_cast<int>(std::min<size_t>(text.size(), 200)), text.data());
    std::fflush(stdout);
    lines_.emplace_back(at, text);
  }
  double seconds() const { return us_since(start_) / 1e6; }
  // Time of the first line that has both words; negative: none.
  double first(const std::string& a, const std::string& b) {
    const std::lock_guard lock(mutex_);
    for (const auto& [at, text] : lines_)
      if (text.find(a) != std::string::npos && text.find(b) != std::string::npos) return at;
    return -1;
  }

 private:
  const Steady::time_point start_ = Steady::now();
  std::mutex mutex_;
  std::ofstream file_;
  std::vector<std::pair<double, std::string>> lines_;
};

struct Site {
  std::string name;
  OpHandle handle;
  DLDataType dtype;
  std::vector<at::Tensor> tensors;  // the last one is the output
  std::vector<DLTensor> args;
  at::Tensor want;
  double tolerance = 0;
  std::vector<long> axes;

  void prepare() {
    args.clear();
    for (at::Tensor& t : tensors) {
      DLTensor d{};
      d.data = t.data_ptr();
      d.device = {kDLCUDA, 0};
      d.ndim = static_cast<int>(t.dim());
      d.shape = const_cast<int64_t*>(t.sizes().data());
      d.dtype = dtype;
      args.push_back(d);
    }
  }
  void call() { must(handle.call(args, nullptr)); }
  bool right() {
    const at::Tensor difference = (tensors.back().to(at::kFloat) - want).abs().max();
    const double worst = difference.item<double>();
    return std::isfinite(worst) && worst <= tolerance;
  }
};

at::Tensor random(at::IntArrayRef shape, double scale = 1, double mean = 0) {
  return (at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kFloat)) * scale + mean).to(at::kBFloat16);
}
at::Tensor blank(at::IntArrayRef shape) {
  return at::empty(shape, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
}

// What the demonstration needs of the driver beyond niche's table.
struct Graphs {
  decltype(&::cuStreamBeginCapture) begin = nullptr;
  decltype(&::cuStreamEndCapture) end = nullptr;
  decltype(&::cuGraphInstantiateWithFlags) instantiate = nullptr;
  decltype(&::cuGraphLaunch) launch = nullptr;
  void load() {
    void* lib = ::dlopen("libcuda.so.1", RTLD_NOW);
    const auto find = [&](auto& f, const char* name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(::dlsym(lib, name));
      if (f == nullptr) die(std::string("no ") + name);
    };
    find(begin, "cuStreamBeginCapture_v2");
    find(end, "cuStreamEndCapture");
    find(instantiate, "cuGraphInstantiateWithFlags");
    find(launch, "cuGraphLaunch");
  }
};

class Live {
 public:
  Live(const std::string& out, double seconds, double duty) : out_(out), seconds_(seconds) {
    std::filesystem::create_directories(out);
    events_ = std::make_shared<Events>(out + "/events.txt");
    must(open_torch_cuda());
    driver_ = must(dispatch::CudaDriver::load());
    graphs_.load();
    const std::string cache = "/tmp/niche_live_cache";
    std::filesystem::remove_all(cache);
    std::filesystem::create_directories(cache);
    RuntimeConfig c = torch_config();
    c.cache_dir = cache;
    c.worker_program = "/proc/self/exe";
    c.worker_args = {"worker"};
    c.session_seconds_max = 60;
    c.session_evaluations_max = 120;
    c.session_cpu_share = 8;
    c.p99_slack =
        3;  // so that sessions are not paused by what this demonstration measures: p99 is in its table
    c.log = events_;
    must(enable_cuda(&c, driver_, duty));
    runtime_ = must(Runtime::create(std::move(c)));
    result_["tuning_duty"] = duty;
    result_["device"] = must(dispatch::CudaInfo::discover(*driver_))[0].device_class();
  }

  void add(const std::string& name, OpHandle handle, std::vector<at::Tensor> tensors,
           std::vector<long> axes) {
    Site s{name, std::move(handle), kBf16, std::move(tensors), {}, {}, 0, std::move(axes)};
    s.prepare();
    s.tensors.back().fill_(NAN);
    s.call();  // the library: nothing is evolved yet
    s.want = s.tensors.back().to(at::kFloat).clone();
    s.tolerance = 0.02 * s.want.abs().max().item<double>();
    sites_.push_back(std::move(s));
  }

  int run() {
    const int64_t n = 4096;
    auto norm = must(runtime_->op("rms_norm", kBf16, {{"N", n}}, {{"eps", 1e-6}}));
    for (const int64_t m : {256, 1024})
      add("rms_norm M=" + std::to_string(m), norm, {random({m, n}), random({n}, 0.1, 1), blank({m, n})},
          {m, n});
    add("conv1d B=64",
        must(runtime_->op("conv1d", kBf16, {{"Ci", 96}, {"Co", 96}, {"K", 3}},
                          {{"padding", 1}, {"has_bias", 1}})),
        {random({64, 96, 200}), random({96, 96, 3}, 0.05), random({96}, 0.05), blank({64, 96, 200})},
        {64, 200, 96, 96, 3, 200});
    add("optimized_fm B=128", must(runtime_->op("optimized_fm", kBf16, {{"N", 24}, {"D", 224}, {"K", 448}})),
        {random({128, 24, 224}), random({128, 24, 448}), blank({128, 24, 448})}, {128, 24, 224, 448});

    runtime_->pause_evolution(true);
    phase("before", 4, false);
    runtime_->pause_evolution(false);
    phase("while sessions run", seconds_, true);
    runtime_->pause_evolution(true);
    phase("after", 4, false);
    for (Site& s : sites_) result_["calls"][s.name] = call_us(s);
    captured();
    for (Site& s : sites_) over_bare(s);
    result_["events"] = {{"first_session", events_->first("session started", "")},
                         {"first_kernel", events_->first("kernel verified", "")},
                         {"first_canary", events_->first("canary", "")},
                         {"first_incumbent", events_->first("incumbent", "")}};
    result_["status"] = json::parse(runtime_->status());
    for (const auto& d : result_["status"]["definitions"])
      if (d.contains("device"))
        std::printf("%s: tried %s, rejected %s, %zu kernels\n", d["name"].get<std::string>().c_str(),
                    d["tried"].dump().c_str(), d.value("rejected", json::object()).dump().c_str(),
                    d["kernels"].size());
    save();
    std::printf("first session %.1f s, kernel %.1f s, canary %.1f s, incumbent %.1f s; wrong answers %lld\n",
                events_->first("session started", ""), events_->first("kernel verified", ""),
                events_->first("canary", ""), events_->first("incumbent", ""),
                static_cast<long long>(wrong_));
    return wrong_ == 0 && events_->first("incumbent", "") >= 0 ? 0 : 1;
  }

 private:
  void save() { std::ofstream(out_ + "/live.json") << result_.dump(1) << '\n'; }

  // Requests: each site twice, then the end of the device's work; one a millisecond from its schedule.
  void phase(const std::string& name, double seconds, bool until_served) {
    std::vector<double> us, work;
    int64_t requests = 0, checked = 0, wrong = 0;
    const auto start = Steady::now();
    auto due = start;
    while (us_since(start) < seconds * 1e6) {
      std::this_thread::sleep_until(due - std::chrono::microseconds(60));
      while (Steady::now() < due) {
      }
      const bool check = requests % 50 == 0;
      if (check)
        for (Site& s : sites_) s.tensors.back().fill_(NAN);
      const auto began = Steady::now();
      {
        const RequestScope scope(runtime_->dispatcher(), {.id = ++request_, .capture = CaptureState::kNone});
        for (int i = 0; i < 2; ++i)
          for (Site& s : sites_) s.call();
        driver_->cuStreamSynchronize(nullptr);
      }
      us.push_back(us_since(due));
      work.push_back(us_since(began));
      ++requests;
      if (check) {
        for (Site& s : sites_) {
          ++checked;
          if (s.right()) continue;
          ++wrong;
          std::printf("WRONG %s\n", s.name.c_str());
        }
        due = Steady::now();
      }
      due += std::chrono::microseconds(1000);
      if (until_served && requests % 500 == 0 && served_all() && ++patience_ > 10) break;
    }
    wrong_ += wrong;
    std::sort(us.begin(), us.end());
    std::sort(work.begin(), work.end());
    const auto at = [](const std::vector<double>& v, double q) {
      return v[static_cast<size_t>(q * static_cast<double>(v.size() - 1))];
    };
    std::printf(
        "%-20s %6lld requests, %lld answers checked, %lld wrong; request %7.1f us median, latency p50 %7.1f "
        "p99 %7.1f\n",
        name.c_str(), static_cast<long long>(requests), static_cast<long long>(checked),
        static_cast<long long>(wrong), at(work, 0.5), at(us, 0.5), at(us, 0.99));
    std::fflush(stdout);
    result_["phases"].push_back({{"phase", name},
                                 {"requests", requests},
                                 {"checked", checked},
                                 {"wrong", wrong},
                                 {"work_us_p50", at(work, 0.5)},
                                 {"p50_us", at(us, 0.5)},
                                 {"p99_us", at(us, 0.99)},
                                 {"max_us", us.back()}});
    save();
  }

  const dispatch::CudaKernel* kernel_of(const Site& s) {
    std::shared_ptr<dispatch::Route> route = route_of(s);
    if (route == nullptr || route->state() != dispatch::RolloutState::kIncumbent ||
        route->incumbent() == nullptr)
      return nullptr;
    return static_cast<const dispatch::CudaKernel*>(route->incumbent().get());
  }
  std::shared_ptr<dispatch::Route> route_of(const Site& s) {
    dispatch::WideProblem p{s.handle.state()->site(1).prefix(), dispatch::LayoutClass::plain_at(0), {}};
    const auto vars = s.handle.definition().var_axes();
    for (size_t i = 0; i < vars.size(); ++i) p.axes[i] = s.axes[static_cast<size_t>(vars[i])];
    uintptr_t ored = 0;
    for (const at::Tensor& t : s.tensors) ored |= reinterpret_cast<uintptr_t>(t.data_ptr());
    p.layout = dispatch::LayoutClass::plain_at(ored);
    return runtime_->dispatcher().publisher().find(p);
  }
  bool served_all() {
    return std::all_of(sites_.begin(), sites_.end(),
                       [&](const Site& s) { return kernel_of(s) != nullptr; }) &&
           runtime_->sessions_running() == 0;
  }

  // Wall time of a call, 200 in a row: the library's by its form, and what serves now.
  json call_us(Site& s) {
    const auto block = [&](auto&& body) {
      std::vector<double> us;
      for (int r = 0; r < 21; ++r) {
        const auto start = Steady::now();
        for (int i = 0; i < 200; ++i) body();
        driver_->cuStreamSynchronize(nullptr);
        us.push_back(us_since(start) / 200);
      }
      std::nth_element(us.begin(), us.begin() + 10, us.end());
      return us[10];
    };
    const double mine = block([&] { s.call(); });
    const dispatch::CudaKernel* k = kernel_of(s);
    must(runtime_->force("fallback"));
    const double library = block([&] { s.call(); });
    must(runtime_->force(""));
    std::printf("%-20s library %7.2f us a call, niche %7.2f us (%.2fx) by %s\n", s.name.c_str(), library,
                mine, library / mine, k != nullptr ? k->name.c_str() : "the library");
    return {{"library_us", library}, {"niche_us", mine}, {"kernel", k != nullptr ? k->name : ""}};
  }

  // A graph that captured the serving kernel: replayed as it is, with another kernel of the same family's
  // swapped into its node, and with the first one back.
  void captured() {
    // One phase, no cluster: what a node can exchange.
    const auto at = std::find_if(sites_.begin(), sites_.end(), [&](const Site& s) {
      const dispatch::CudaKernel* k = kernel_of(s);
      return k != nullptr && k->cuda_phase_count == 1 && k->cuda_phases[0].cluster == 1 &&
             k->workspace_units == 0;
    });
    if (at == sites_.end()) {
      std::printf("captured graph: no kernel that serves can be exchanged\n");
      return;
    }
    Site& s = *at;
    const dispatch::CudaKernel* now = kernel_of(s);
    auto record = must(runtime_->graph({.label = "live"}));
    CUstream stream = nullptr;
    must(driver_->check(driver_->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                        "cuStreamCreate", "live"));
    must(driver_->check(graphs_.begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture",
                        "live"));
    {
      const RequestScope scope(runtime_->dispatcher(),
                               {.capture = CaptureState::kCaptured, .graph = record.get()});
      must(s.handle.call(s.args, stream));
    }
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    must(driver_->check(graphs_.end(stream, &graph), "cuStreamEndCapture", "live"));
    must(driver_->check(graphs_.instantiate(&exec, graph, 0), "cuGraphInstantiate", "live"));
    const auto replay = [&] {
      s.tensors.back().fill_(NAN);
      driver_->cuStreamSynchronize(nullptr);
      must(driver_->check(graphs_.launch(exec, stream), "cuGraphLaunch", "live"));
      driver_->cuStreamSynchronize(stream);
      return s.right();
    };
    const bool first = replay();
    for (const auto& use : record->uses())
      if (use.kernel != nullptr) std::printf("captured graph: holds %s\n", use.kernel->name.c_str());
    const auto other_kernel = another_kernel(s, *now);
    int swapped = 0;
    bool after_swap = false, after_back = false;
    double swap_us = 0;
    if (other_kernel != nullptr) {
      const auto start = Steady::now();
      auto n = dispatch::swap_in_graph(graph, exec, *now, *other_kernel);
      swap_us = us_since(start);
      if (!n.ok()) std::printf("captured graph: %s\n", n.status().to_string().c_str());
      swapped = n.ok() ? *n : -1;
      after_swap = replay();
      auto back = dispatch::swap_in_graph(graph, exec, *now, *now);
      after_back = back.ok() && replay();
    }
    wrong_ += (first ? 0 : 1) + (other_kernel != nullptr && !(after_swap && after_back) ? 1 : 0);
    std::printf("captured graph: replay %s; %d node swapped in %.1f us for %s: %s; back: %s; may_replay %d\n",
                first ? "right" : "WRONG", swapped, swap_us,
                other_kernel ? other_kernel->name.c_str() : "nothing", after_swap ? "right" : "WRONG",
                after_back ? "right" : "WRONG", record->may_replay() ? 1 : 0);
    result_["captured"] = {{"replay_right", first},
                           {"swapped", swapped},
                           {"swap_us", swap_us},
                           {"right_after_swap", after_swap},
                           {"right_after_swap_back", after_back},
                           {"kernel", now->name},
                           {"other", other_kernel ? other_kernel->name : ""}};
    save();
  }
  // A second seed of the kernel's family, compiled here.
  std::shared_ptr<const dispatch::CudaKernel> another_kernel(const Site& s, const dispatch::CudaKernel& now);

  // Median of alternated bursts of 30: handle.call minus cuLaunchKernel of its first phase.
  void over_bare(Site& s) {
    const dispatch::CudaKernel* k = kernel_of(s);
    if (k == nullptr) return;
    dispatch::NicheCudaArgs packed{};
    for (size_t i = 0; i < s.tensors.size(); ++i) packed.p[i] = s.tensors[i].data_ptr();
    std::vector<long> n(dispatch::kMaxAxes, 0);
    std::copy(s.axes.begin(), s.axes.end(), n.begin());
    for (size_t i = 0; i < s.axes.size(); ++i) packed.n[i] = s.axes[i];
    const auto& p = k->cuda_phases[0];
    const unsigned blocks = packed.blocks[0] = k->blocks(0, n.data());
    if (k->cuda_phase_count != 1 || p.cluster != 1 || k->workspace_units != 0) return;
    void* parameters[] = {&packed};
    runtime_->dispatcher().set_sampling({.time_every = 0, .shadow_every = 0});
    std::vector<double> difference, bare_ns, direct;
    void* pointers[dispatch::kMaxArgs] = {};
    for (size_t i = 0; i < s.tensors.size(); ++i) pointers[i] = s.tensors[i].data_ptr();
    const NicheKernelArgs direct_args{pointers, n.data(), nullptr, nullptr, nullptr};
    const auto ns = [&](auto&& body) {
      const auto start = Steady::now();
      for (int i = 0; i < 30; ++i) body();
      const double d = us_since(start) * 1e3 / 30;
      driver_->cuStreamSynchronize(nullptr);
      return d;
    };
    for (int round = 0; round < 401; ++round) {
      double bare = 0, mine = 0;
      const auto run_bare = [&] {
        bare = ns([&] {
          driver_->cuLaunchKernel(p.function, blocks, 1, 1, p.threads, 1, 1, p.shared_bytes, nullptr,
                                  parameters, nullptr);
        });
      };
      const auto run_mine = [&] {
        const RequestScope scope(runtime_->dispatcher(), {.id = 1, .capture = CaptureState::kNone});
        mine = ns([&] { (void)s.handle.call(s.args, nullptr); });
      };
      round % 2 == 0 ? (run_bare(), run_mine()) : (run_mine(), run_bare());
      // The kernel's own launch, without a handle.
      direct.push_back(ns([&] { (void)dispatch::launch_cuda(*k, direct_args, nullptr, nullptr); }) - bare);
      difference.push_back(mine - bare);
      bare_ns.push_back(bare);
    }
    std::nth_element(difference.begin(), difference.begin() + 200, difference.end());
    std::nth_element(bare_ns.begin(), bare_ns.begin() + 200, bare_ns.end());
    std::nth_element(direct.begin(), direct.begin() + 200, direct.end());
    std::printf(
        "%-20s bare cuLaunchKernel %.0f ns; the kernel's own launch %+.0f, through the handle %+.0f\n",
        s.name.c_str(), bare_ns[200], direct[200], difference[200]);
    result_["launch"][s.name] = {
        {"bare_ns", bare_ns[200]}, {"direct_over_ns", direct[200]}, {"over_ns", difference[200]}};
    save();
  }

  const std::string out_;
  const double seconds_;
  std::shared_ptr<Events> events_;
  std::shared_ptr<const dispatch::CudaDriver> driver_;
  Graphs graphs_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<Site> sites_;
  uint64_t request_ = 0;
  int64_t wrong_ = 0;
  int patience_ = 0;
  json result_;
};

std::shared_ptr<const dispatch::CudaKernel> Live::another_kernel(const Site& s,
                                                                 const dispatch::CudaKernel& now) {
  // Of the module's life, which is the process's.
  const auto device = std::shared_ptr<const dispatch::CudaDevice>(now.cuda_module, now.device);
  const auto& d = s.handle.state()->definition();
  auto toolchain = must(evolve::CudaToolchain::find({}));
  const auto target = must(cuda_target(*driver_, 0));
  evolve::CudaFamilyRegistry families;
  ops_cuda::register_cuda_families(families);
  for (const auto* f : families.for_op(d->schema().op))
    for (const auto& point : f->seeds(*d, target)) {
      const auto source = f->render(*d, target, point);
      if (source.kernel_name == now.name || source.plan.phases.size() != 1 ||
          source.plan.phases[0].cluster != 1 || source.plan.phases[0].overlap != now.cuda_phases[0].overlap ||
          source.plan.workspace_bytes != 0)
        continue;
      auto cubin = must(toolchain->compile(source.kernel_name, source.text, target.arch));
      auto module = must(dispatch::CudaModule::load(device, cubin.bytes, source.kernel_name));
      dispatch::CudaKernelSpec spec{source.kernel_name, d, source.limits, source.plan, source.properties, {}};
      return must(dispatch::load_cuda_kernel(std::move(spec), module));
    }
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (niche::is_worker(argc, argv)) return niche::worker_main(argc, argv);
  if (argc < 2) die("usage: niche_live_check OUTDIR [SECONDS [DUTY]]");
  return Live(argv[1], argc > 2 ? std::atof(argv[2]) : 100, argc > 3 ? std::atof(argv[3]) : 0.01).run();
}
