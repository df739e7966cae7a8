#include "bench/cuda/two_gpus/rank.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <sched.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <thread>

#include "bench/cuda/two_gpus/collectives.h"
#include "bench/cuda/two_gpus/reduced_op.h"
#include "dispatch/devices/cuda/cuda_kernel.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "runtime/cuda/cuda.h"
#include "runtime/handle_state.h"
#include "runtime/ops/cuda/families.h"
#include "runtime/torch/cuda_forms.h"
#include "runtime/torch/torch.h"

namespace niche::two_gpus {
namespace {

using Steady = std::chrono::steady_clock;
using dispatch::GroupChange;

template <typename T>
T must(Result<T> r) {
  if (!r.ok()) throw std::runtime_error(r.status().to_string());
  return std::move(*r);
}
void must(const Status& s) {
  if (!s.ok()) throw std::runtime_error(s.to_string());
}
uint64_t us_since(Steady::time_point start) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(Steady::now() - start).count());
}

// What this needs of the driver beyond niche's table.
struct Streams {
  decltype(&::cuStreamQuery) query = nullptr;
  decltype(&::cuStreamBeginCapture) begin = nullptr;
  decltype(&::cuStreamEndCapture) end = nullptr;
  decltype(&::cuGraphInstantiateWithFlags) instantiate = nullptr;
  decltype(&::cuGraphLaunch) launch = nullptr;
  decltype(&::cuGraphExecDestroy) destroy_exec = nullptr;
  decltype(&::cuGraphDestroy) destroy = nullptr;
  void load() {
    void* lib = ::dlopen("libcuda.so.1", RTLD_NOW);
    if (lib == nullptr) throw std::runtime_error("no libcuda.so.1");
    const auto find = [&](auto& f, const char* name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(::dlsym(lib, name));
      if (f == nullptr) throw std::runtime_error(std::string("libcuda has no ") + name);
    };
    find(query, "cuStreamQuery");
    find(begin, "cuStreamBeginCapture_v2");
    find(end, "cuStreamEndCapture");
    find(instantiate, "cuGraphInstantiateWithFlags");
    find(launch, "cuGraphLaunch");
    find(destroy_exec, "cuGraphExecDestroy");
    find(destroy, "cuGraphDestroy");
  }
};

// One operator as it is called: its handle, its tensors, and what its output must be.
struct Site {
  std::shared_ptr<ReducedOp> op;
  OpHandle handle;
  std::vector<at::Tensor> tensors;
  std::vector<DLTensor> args;
  std::vector<int64_t> vars;  // the variable axes
  at::Tensor want;
  std::vector<std::string> kernels;  // offered ones
};

class Rank {
 public:
  Rank(Stage* stage, const RankOptions& o)
      : stage_(stage), me_(stage->rank[o.rank]), o_(o), session_(o.session) {
    at::set_num_threads(1);
    config_ = torch_config();
    if (o.cuda) {
      must(open_torch_cuda());
      streams_.load();
      driver_ = must(dispatch::CudaDriver::load());
      must(enable_cuda(&config_, driver_));
      // Calls, library forms and collectives on one stream, which can be captured.
      const c10::impl::VirtualGuardImpl guard(at::kCUDA);
      const c10::Stream s = guard.getStreamFromGlobalPool(at::Device(at::kCUDA, 0), false);
      guard.exchangeStream(s);
      stream_ = s.native_handle();
    }
    config_.evolve = false;
    config_.tick_seconds = 0.001;
    config_.shadow_one_in = 1 << 24;  // without a group a shadow run would issue collectives of its own
    for (const auto& op : config_.ops) {
      if (op->schema()->op == "linear") linear_.op = std::make_shared<ReducedOp>(op, link_);
      if (op->schema()->op == "pffn") pffn_.op = std::make_shared<ReducedOp>(op, link_);
    }
    config_.ops.push_back(linear_.op);
    config_.ops.push_back(pffn_.op);
    if (o.grouped) {
      config_.group_board = o.board;
      config_.group_rank = o.rank;
      config_.group_ranks = kRanks;
      config_.group_ops = {"linear_reduced", "pffn_reduced"};
    }
    runtime_ = must(Runtime::create(config_));
    make_sites();
  }

  int run() {
    for (Site* s : {&linear_, &pffn_}) offer(*s);
    if (o_.grouped) group_ = must(runtime_->join_group());
    graph_ = must(runtime_->graph({.label = "step"}));
    uint64_t n = stage_->first_step.load();
    for (;;) {
      if (!meet()) return 3;
      n = stage_->first_step.load();
      if (died_ != Steady::time_point{}) me_.restart_us = us_since(std::exchange(died_, {}));
      const Left why = serve(&n);
      if (why == Left::kFinished) {
        report();
        // The other one may still be reading what this one has sent.
        me_.finished = 1;
        while (stage_->rank[1 - o_.rank].finished.load() == 0 && !dead() && !stuck()) ::sched_yield();
        drop_graph();
        collectives_.reset();
        return 0;
      }
      give_up();
      report();
      if (why == Left::kStuck) return 3;
      // The other rank died in step n or before it. No rank may serve a step that the dead one would have served by
      // another version: so the next one lies as far behind as a decision that it took part in may reach.
      died_ = Steady::now();
      ++session_;
      if (o_.rank == 0)
        stage_->first_step = std::max(stage_->rank[0].entered.load(), stage_->rank[1].entered.load()) + 2;
    }
  }

 private:
  enum class Left { kFinished, kDead, kStuck };

  bool dead() const { return stage_->dead_session.load() >= session_; }
  bool stuck() const { return stage_->stuck.load() != 0; }

  void make_sites() {
    at::manual_seed(17);  // alike on both ranks: each then takes its part
    const auto type = o_.cuda ? at::kBFloat16 : at::kFloat;
    const DLDataType dtype = o_.cuda ? kBf16 : kF32;
    const auto put = [&](const at::Tensor& t) {
      return t.to(type).to(o_.cuda ? at::kCUDA : at::kCPU).contiguous();
    };
    const int64_t m = 8, n = o_.cuda ? 4096 : 64, k = o_.cuda ? 4096 : 128, part = k / kRanks;
    {
      // y = x W', the K axis split over the ranks.
      const at::Tensor x = at::randn({m, k}), w = at::randn({n, k}) / std::sqrt(double(k));
      const int64_t from = o_.rank * part;
      linear_.tensors = {
          put(x.slice(1, from, from + part)), put(w.slice(1, from, from + part)), {}, put(at::zeros({m, n}))};
      linear_.want = x.to(type).to(at::kFloat).mm(w.to(type).to(at::kFloat).t());
      linear_.handle =
          must(runtime_->op("linear_reduced", dtype, {{"N", n}, {"K", part}}, {{"has_bias", 0}}));
      linear_.vars = {m};
    }
    {
      // The sum of two PFFNs of the same input, one a rank.
      const int64_t b = 4, rows = o_.cuda ? 32 : 8, d = o_.cuda ? 128 : 16, h = o_.cuda ? 64 : 16;
      const at::Tensor x = put(at::randn({b, rows, d}));
      for (int rank = 0; rank < kRanks; ++rank) {
        std::vector<at::Tensor> t = {x,
                                     put(at::randn({b, d, h}) / std::sqrt(double(d))),
                                     put(at::randn({h}) * 0.1),
                                     put(at::randn({b, h, d}) / std::sqrt(double(h))),
                                     put(at::randn({d}) * 0.1),
                                     put(at::zeros({b, rows, d}))};
        // By the library, in this process: what the ranks must agree with.
        Site probe{pffn_.op, {}, t, {}, {}, {}, {}};
        probe.handle = must(runtime_->op("pffn", dtype, {{"N", rows}, {"D", d}, {"K", h}}));
        view(probe, dtype);
        must(probe.handle.call(probe.args, stream_));
        const at::Tensor y = probe.tensors.back().to(at::kFloat).to(at::kCPU);
        pffn_.want = pffn_.want.defined() ? pffn_.want + y : y;
        if (rank == o_.rank) pffn_.tensors = t;
      }
      pffn_.handle = must(runtime_->op("pffn_reduced", dtype, {{"N", rows}, {"D", d}, {"K", h}}));
      pffn_.vars = {b};
    }
    view(linear_, dtype);
    view(pffn_, dtype);
  }
  void view(Site& s, DLDataType dtype) {
    s.args.clear();
    for (at::Tensor& t : s.tensors) {
      DLTensor d{};
      if (t.defined()) {
        d.data = t.data_ptr();
        d.device = {o_.cuda ? kDLCUDA : kDLCPU, 0};
        d.ndim = static_cast<int>(t.dim());
        d.shape = const_cast<int64_t*>(t.sizes().data());
        d.dtype = dtype;
      }
      s.args.push_back(d);
    }
  }

  // A kernel of the inner operator: on a GPU the first seed of a family; else, and where none fits, the library's form.
  std::shared_ptr<const dispatch::Kernel> inner_kernel(const Site& s,
                                                       const std::shared_ptr<const dispatch::Definition>& d) {
    if (o_.cuda) {
      auto toolchain = must(evolve::CudaToolchain::find({}));
      const auto target = must(cuda_target(*driver_, 0));
      const auto device =
          must(dispatch::CudaDevice::open(driver_, must(dispatch::CudaInfo::discover(*driver_))[0]));
      evolve::CudaFamilyRegistry families;
      ops_cuda::register_cuda_families(families);
      for (const auto* f : families.for_op(d->schema().op))
        for (const auto& point : f->seeds(*d, target)) {
          const auto source = f->render(*d, target, point);
          if (source.plan.workspace_bytes != 0 || !source.limits.holds_var(s.vars.data())) continue;
          auto cubin = must(toolchain->compile(source.kernel_name, source.text, target.arch));
          auto module = must(dispatch::CudaModule::load(device, cubin.bytes, source.kernel_name));
          return must(dispatch::load_cuda_kernel(
              {source.kernel_name, d, source.limits, source.plan, source.properties, {}}, module));
        }
    }
    return dispatch::make_fallback_kernel(s.op->inner_ref(), d, 0);
  }
  void offer(Site& s) {
    const auto& reduced = s.handle.state()->definition();
    const auto& inner = s.op->inner();
    Axes extents;
    for (size_t i = 0; i < reduced->schema().axes.size(); ++i)
      if (reduced->schema().axes[i].kind == dispatch::AxisKind::kConst)
        extents.emplace_back(reduced->schema().axes[i].name, reduced->const_extents()[i]);
    Attrs attrs;
    for (size_t i = 0; i < reduced->schema().attrs.size(); ++i)
      attrs.emplace_back(reduced->schema().attrs[i].name, reduced->attrs()[i]);
    const auto d = must(dispatch::Definition::make(inner.schema(), reduced->dtype(), extents, attrs));
    const auto library = dispatch::make_fallback_kernel(s.op->inner_ref(), d, 0), own = inner_kernel(s, d);
    const auto kind = o_.cuda ? dispatch::KernelKind::kCuda : dispatch::KernelKind::kCpu;
    const struct {
      std::shared_ptr<const dispatch::Kernel> inner;
      How how;
      const char* text;
    } kernels[] = {{own, How::kScatterGather, "; reduce_scatter, all_gather"},
                   {own, How::kAllReduce, "; all_reduce"},
                   {library, How::kTwoAllReduces, "; all_reduce, all_reduce"},
                   {library, How::kScatterGather, "; reduce_scatter, all_gather"}};
    uint8_t code = 1;
    for (const auto& k : kernels) {
      auto made = reduced_kernel(s.op, reduced, k.inner, link_, kind, k.how, code, k.inner->name + k.text);
      s.kernels.push_back(made->name + " #" + std::to_string(code));
      std::const_pointer_cast<dispatch::Kernel>(made)->name = s.kernels.back();
      if (o_.grouped) must(runtime_->offer_to_group(made));
      offered_[&s == &pffn_][code++] = made;
    }
  }

  // Both ranks have a communicator of this session. False: stuck.
  bool meet() {
    auto made = o_.cuda ? nccl_collectives(stage_, o_.rank, session_, Element::kBf16,
                                           [this] { return stuck() || dead(); })
                        : host_collectives(stage_, o_.rank, session_);
    collectives_ = must(std::move(made));
    link_->now = collectives_.get();
    me_.ready = session_;
    while (stage_->rank[1 - o_.rank].ready.load() < session_) {
      if (stuck()) return false;
      ::sched_yield();
    }
    return true;
  }

  Left serve(uint64_t* n) {
    for (;; ++*n) {
      me_.entered = *n;
      const uint64_t version = group_ ? group_->step(*n) : alone(*n);
      me_.version = version;
      StepRecord r;
      r.step = static_cast<uint32_t>(*n);
      r.version = static_cast<uint32_t>(version);
      r.session = static_cast<uint16_t>(session_);
      call(linear_, &r.kernels[0]);
      call(pffn_, &r.kernels[1]);
      if (o_.cuda && *n % 16 == 0) {
        replay(version);
        r.replayed = 1;
      }
      const bool ended = wait();
      r.done = ended ? 1 : 2;
      const uint32_t at = me_.steps.load();
      if (at < Stage::kStepsMax) stage_->log[o_.rank][at] = r, me_.steps = at + 1;
      if (!ended) {
        ++me_.lost_steps;
        return stuck() ? Left::kStuck : Left::kDead;
      }
      if (*n % 64 == 0 || version != checked_version_) check(version);
      if (version >= o_.versions || *n >= o_.steps_max) return Left::kFinished;
      propose(*n, version);
    }
  }
  void call(Site& s, uint8_t* code) {
    must(s.handle.call(s.args, stream_));
    *code = link_->last_code;
  }
  // The step's work has come to its end. False: it never will.
  bool wait() {
    if (!link_->failure.empty()) {
      if (dead() || stuck()) return false;
      throw std::runtime_error(link_->failure);
    }
    if (!o_.cuda) return true;
    for (;;) {
      const CUresult r = streams_.query(static_cast<CUstream>(stream_));
      if (r == CUDA_SUCCESS) return true;
      if (r != CUDA_ERROR_NOT_READY) must(driver_->check(r, "cuStreamQuery", "step"));
      if (dead() || stuck()) return false;
    }
  }

  void capture(uint64_t version) {
    drop_graph();
    const auto stream = static_cast<CUstream>(stream_);
    must(driver_->check(streams_.begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture",
                        "step"));
    {
      const RequestScope scope(runtime_->dispatcher(),
                               {.capture = CaptureState::kCaptured, .graph = graph_.get()});
      for (Site* s : {&linear_, &pffn_}) must(s->handle.call(s->args, stream_));
    }
    must(driver_->check(streams_.end(stream, &captured_), "cuStreamEndCapture", "step"));
    must(driver_->check(streams_.instantiate(&exec_, captured_, 0), "cuGraphInstantiate", "step"));
    captured_version_ = version;
    ++me_.captures;
  }
  void replay(uint64_t version) {
    if (exec_ == nullptr || captured_version_ != version || !graph_->may_replay()) capture(version);
    must(driver_->check(streams_.launch(exec_, static_cast<CUstream>(stream_)), "cuGraphLaunch", "step"));
  }
  void drop_graph() {
    if (exec_ != nullptr) (void)streams_.destroy_exec(std::exchange(exec_, nullptr));
    if (captured_ != nullptr) (void)streams_.destroy(std::exchange(captured_, nullptr));
    graph_->restart();
  }

  // The other rank is gone, or stands in another collective: nothing on the stream ends by itself.
  void give_up() {
    const auto start = Steady::now();
    std::thread aborting([this] { collectives_->abort(); });
    if (o_.cuda) {
      // The kernels see that their communicator is given up and end; the graph holds on to it until it is destroyed.
      while (streams_.query(static_cast<CUstream>(stream_)) == CUDA_ERROR_NOT_READY) ::sched_yield();
      drop_graph();
    }
    aborting.join();
    me_.abort_us = us_since(start);
    ++me_.aborted;
    link_->now = nullptr;
    link_->failure.clear();
    collectives_.reset();
  }

  void check(uint64_t version) {
    checked_version_ = version;
    for (Site* s : {&linear_, &pffn_}) {
      const at::Tensor got = s->tensors.back().to(at::kFloat).to(at::kCPU);
      const double top = s->want.abs().max().item<double>(), off = (got - s->want).abs().max().item<double>();
      ++me_.checked;
      if (std::isfinite(off) && off <= (o_.cuda ? 0.02 : 1e-4) * top) continue;
      ++me_.wrong;
      std::snprintf(me_.problem, sizeof me_.problem, "%s, version %llu: off by %.3g of %.3g",
                    s->handle.definition().name().c_str(), static_cast<unsigned long long>(version), off,
                    top);
    }
  }

  // The next version, by whichever rank's turn it is: another kernel for one operator or both, or what served before.
  void propose(uint64_t n, uint64_t version) {
    if (!group_ || n % 4 != static_cast<uint64_t>(o_.rank) * 2) return;
    if (version % 3 == 2) {
      (void)group_->roll_back();  // busy, or a rollback serves: another turn
      if (n % 32 < 28) return;
    }
    std::vector<GroupChange> changes;
    const uint64_t turn = mix_++;
    for (Site* s : {&linear_, &pffn_}) {
      if (s == &pffn_ && turn % 3 == 0) continue;
      GroupChange c;
      c.definition = s->handle.definition().name();
      c.threads = static_cast<uint32_t>(config_.executor.threads);
      c.layout = layout(*s);
      std::copy(s->vars.begin(), s->vars.end(), c.axes.begin());
      const size_t choice = (version + turn + (s == &pffn_)) % (s->kernels.size() + 1);
      if (choice != 0) c.kernel = s->kernels[choice - 1];
      changes.push_back(std::move(c));
    }
    (void)group_->propose(changes);
  }
  static dispatch::LayoutClass layout(const Site& s) {
    uintptr_t ored = 0;
    for (const at::Tensor& t : s.tensors)
      if (t.defined()) ored |= reinterpret_cast<uintptr_t>(t.data_ptr());
    return dispatch::LayoutClass::plain_at(ored);
  }

  // Without a group: every rank swaps by itself, each at its own steps.
  uint64_t alone(uint64_t n) {
    if (n % (20 + 3 * static_cast<uint64_t>(o_.rank)) != 0) return swaps_;
    auto& d = runtime_->dispatcher();
    const uint8_t code = static_cast<uint8_t>(1 + swaps_ % 4);
    Site& s = linear_;
    dispatch::WideProblem p{s.handle.state()->site(o_.cuda ? 1 : 0).prefix(), layout(s), {}};
    std::copy(s.vars.begin(), s.vars.end(), p.axes);
    const auto k = offered_[0][code];
    auto route = must(d.make_route({k->definition, d.fallback(s.handle.id(), 0), k, nullptr,
                                    dispatch::RolloutState::kIncumbent, 0, k->name}));
    must(d.publisher().put(p, route));
    must(d.publisher().commit());
    return ++swaps_;
  }

  void report() {
    if (!group_) return;
    const GroupStatus s = group_->status();
    me_.swaps = s.switches;
    me_.dropped = s.dropped;
    me_.waits = s.waits;
    if (!s.fault.empty()) throw std::runtime_error("group fault: " + s.fault);
  }

  Stage* const stage_;
  Stage::Rank& me_;
  const RankOptions o_;
  uint32_t session_;
  RuntimeConfig config_;
  std::shared_ptr<const dispatch::CudaDriver> driver_;
  Streams streams_;
  void* stream_ = nullptr;
  std::shared_ptr<Link> link_ = std::make_shared<Link>();
  Site linear_, pffn_;
  std::shared_ptr<const dispatch::Kernel> offered_[2][5];
  std::unique_ptr<Runtime> runtime_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<CapturedGraph> graph_;
  std::unique_ptr<Collectives> collectives_;
  CUgraph captured_ = nullptr;
  CUgraphExec exec_ = nullptr;
  uint64_t captured_version_ = 0, checked_version_ = 0, mix_ = 0, swaps_ = 0;
  Steady::time_point died_{};
};

}  // namespace

int serve_rank(Stage* stage, const RankOptions& options) {
  Stage::Rank& me = stage->rank[options.rank];
  try {
    const c10::InferenceMode guard;
    Rank rank(stage, options);
    const int status = rank.run();
    std::fflush(stdout);
    return status;
  } catch (const std::exception& e) {
    std::snprintf(me.problem, sizeof me.problem, "%s", e.what());
    std::fprintf(stderr, "rank %d: %s\n", options.rank, e.what());
    return 1;
  }
}

}  // namespace niche::two_gpus
