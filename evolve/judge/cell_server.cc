#include "evolve/judge/cell_server.h"

#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <random>

#include "evolve/judge/cell_timing.h"
#include "evolve/judge/child_pool.h"
#include "evolve/toolchain/confine.h"

extern char** environ;

namespace niche::evolve::judge {
namespace {

using dispatch::ArgRole;
using dispatch::Status;

CrashPage* g_crash = nullptr;  // for the signal handlers: the process has one cell

bool candidate_runs() {
  const auto stage = static_cast<Stage>(g_crash->stage);
  return stage == Stage::kKernel || stage == Stage::kPack;
}

void on_fault(int signal, siginfo_t* info, void*) {
  g_crash->signal = signal;
  g_crash->address = reinterpret_cast<uint64_t>(info->si_addr);
  _exit(100);
}

// A library may ask for something that the walls refuse (a look at /sys, say): it is told so and goes on. A
// candidate has no business to ask.
void on_refused_call(int signal, siginfo_t* info, void* context) {
  if (candidate_runs()) {
    g_crash->signal = signal;
    g_crash->syscall = info->si_syscall;
    _exit(100);
  }
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
}

void handle(int signal, void (*action)(int, siginfo_t*, void*)) {
  struct sigaction s {};
  s.sa_sigaction = action;
  s.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(signal, &s, nullptr);
}

void install_handlers() {
  static uint8_t stack[64 << 10];
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  for (int s : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) handle(s, on_fault);
  handle(SIGSYS, on_refused_call);
}

// Wiped in place: the strings themselves lie on the first stack page for anyone to read.
void wipe_environment() {
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) memset(*e, 0, strlen(*e));
  clearenv();
}

void close_other_descriptors(int channel) {
  if (channel > 0) syscall(SYS_close_range, 0, static_cast<unsigned>(channel - 1), 0);
  syscall(SYS_close_range, static_cast<unsigned>(channel + 1), ~0U, 0);
}

int64_t address_space_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  return pages * kPage;
}

// The library's own memory beyond what is mapped when the cell starts.
constexpr int64_t kExtraAddressBytes = int64_t{8} << 30;
constexpr int64_t kCellCpuSeconds = 600;
constexpr int64_t kCellStackBytes = int64_t{2} << 20;

void split_shuffled(NicheKernelFn fn, const NicheKernelArgs& args, int64_t tasks, uint64_t seed) {
  // Up to eight ranges in random order: what a pool may do, without its threads.
  std::mt19937_64 random(seed);
  std::vector<int64_t> cuts = {0, tasks};
  for (int i = 0; i < 7; ++i) cuts.push_back(std::uniform_int_distribution<int64_t>(0, tasks)(random));
  std::sort(cuts.begin(), cuts.end());
  std::vector<size_t> order(cuts.size() - 1);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  for (size_t i : order)
    if (cuts[i] < cuts[i + 1]) fn(&args, cuts[i], cuts[i + 1]);
}

struct RangeCall {
  NicheKernelFn fn;
  const NicheKernelArgs* args;
};
void run_range(void* ctx, int64_t begin, int64_t end) {
  const auto* c = static_cast<RangeCall*>(ctx);
  c->fn(c->args, begin, end);
}

}  // namespace

void launch(const LoadedKernel& kernel, const NicheKernelArgs& args, const int64_t* axes,
            const dispatch::Executor& executor) {
  for (size_t i = 0; i < kernel.phases.size(); ++i) {
    const dispatch::Phase& phase = kernel.plan->phases[i];
    const int64_t tasks = phase.tasks(axes);
    if (executor.threads > 1 && tasks >= phase.parallel_min_tasks) {
      RangeCall call{kernel.phases[i], &args};
      executor.parallel_for(executor.self, tasks, run_range, &call);
    } else {
      kernel.phases[i](&args, 0, tasks);
    }
  }
}

CellServer::CellServer(const CellSpec& spec)
    : spec_(spec), crash_(spec.arena->mailbox<CrashPage>(kCrashAt)) {}

CellServer::~CellServer() = default;

void CellServer::run(int channel, const std::vector<int>& objects) {
  g_crash = crash_;
  crash_->stage = static_cast<uint32_t>(Stage::kLoading);
  install_handlers();
  wipe_environment();
  auto* reply = spec_.arena->mailbox<CellReply>(kCellReplyAt);
  Status loaded;
  try {
    if (spec_.child_start)
      executor_ = spec_.child_start(spec_.threads);
    else
      executor_ = start_child_pool(spec_.threads);
    // Pools start their threads at the first use; behind the walls they no longer could.
    if (executor_.threads > 1)
      executor_.parallel_for(
          executor_.self, 4 * executor_.threads, [](void*, int64_t, int64_t) {}, nullptr);
    loaded = load(objects);
  } catch (const std::exception& e) {
    loaded = dispatch::device_error(e.what());
  }
  close_other_descriptors(channel);
  close_arena();
  const std::string text = loaded.ok() ? confine() : loaded.message();
  reply->failed = loaded.ok() ? 0 : 1;
  snprintf(reply->text, sizeof reply->text, "%s", text.c_str());
  crash_->stage = static_cast<uint32_t>(Stage::kHarness);
  if (!wait_for_command(channel)) _exit(0);
  answer(channel);
  while (wait_for_command(channel)) {
    crash_->stage = static_cast<uint32_t>(Stage::kHarness);
    serve_one();
    answer(channel);
  }
  _exit(0);
}

Status CellServer::load(const std::vector<int>& objects) {
  std::vector<void*> handles;
  for (size_t i = 0; i < objects.size(); ++i) {
    const std::string path = "/proc/self/fd/" + std::to_string(objects[i]);
    void* h = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (h == nullptr) return dispatch::corrupt("object " + std::to_string(i) + ": " + dlerror());
    handles.push_back(h);
  }
  for (const CellKernel& k : spec_.kernels) {
    LoadedKernel loaded;
    loaded.plan = &k.plan;
    void* h = handles[static_cast<size_t>(k.object)];
    for (const dispatch::Phase& p : k.plan.phases) {
      auto fn = reinterpret_cast<NicheKernelFn>(dlsym(h, p.symbol.c_str()));
      if (fn == nullptr) return dispatch::corrupt("no symbol '" + p.symbol + "'");
      loaded.phases.push_back(fn);
    }
    if (!k.plan.pack_symbol.empty()) {
      loaded.pack = reinterpret_cast<NichePackFn>(dlsym(h, k.plan.pack_symbol.c_str()));
      if (loaded.pack == nullptr) return dispatch::corrupt("no symbol '" + k.plan.pack_symbol + "'");
    }
    kernels_.push_back(std::move(loaded));
  }
  return {};
}

std::string CellServer::confine() {
  if (!spec_.confine) return "guard pages";
  std::string held = "guard pages+rlimits";
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  ResourceLimits limits;
  limits.cpu_seconds = kCellCpuSeconds;
  limits.file_bytes = 0;
  limits.stack_bytes = kCellStackBytes;
  limits.address_bytes = address_space_bytes() + kExtraAddressBytes;
  apply_resource_limits(limits);
  const int ruleset = make_landlock_ruleset({}, {});
  if (ruleset >= 0) {
    if (enter_landlock(ruleset)) held += "+landlock";
    close(ruleset);
  }
  if (enter_compute_seccomp()) held += "+seccomp";
  return held;
}

void CellServer::close_arena() {
  mprotect(spec_.arena->at(kMailboxBytes), static_cast<size_t>(spec_.arena->bytes() - kMailboxBytes),
           PROT_NONE);
}

void CellServer::open(const Placement& p, bool writable) {
  if (p.region_bytes == 0) return;
  mprotect(spec_.arena->at(p.region), static_cast<size_t>(p.region_bytes),
           writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

void CellServer::serve_one() {
  const CellCommand& command = *spec_.arena->mailbox<CellCommand>(kCellCommandAt);
  auto* reply = spec_.arena->mailbox<CellReply>(kCellReplyAt);
  reply->failed = 0;
  Status status;
  // Exceptions of the library form end here; kernels are noexcept.
  try {
    switch (command.kind) {
      case CellCommand::kTest:
        status = test(command.test, reply->test);
        break;
      case CellCommand::kTime:
        rig_.reset();
        close_arena();
        for (int s = 0; s < command.time.sets; ++s)
          for (const Placement& p : command.time.set[s])
            open(p, spec_.defences_off.has(Defence::kReadOnlyInputs));
        for (const Placement& p : command.time.work) open(p, true);
        for (const Placement& p : command.time.verify) open(p, true);
        rig_ = std::make_unique<TimingRig>(spec_, kernels_, executor_, crash_, command.time);
        status = rig_->measure(reply->time);
        break;
      case CellCommand::kBlock:
        status = block(command.block);
        break;
      case CellCommand::kQuit:
        _exit(0);
    }
  } catch (const std::exception& e) {
    status = dispatch::device_error(e.what());
  }
  if (status.ok()) return;
  reply->failed = 1;
  snprintf(reply->text, sizeof reply->text, "%s", status.message().c_str());
}

Status CellServer::test(const TestCommand& c, TestReply& reply) {
  rig_.reset();
  close_arena();
  const dispatch::Definition& d = *spec_.definition;
  const DefencesOff off = spec_.defences_off;
  KernelArgs call(d, c.axes.data());
  for (size_t i = 0; i < d.schema().args.size(); ++i) {
    open(c.arg[i], d.schema().args[i].role != ArgRole::kIn || off.has(Defence::kReadOnlyInputs));
    if (c.arg[i].region_bytes != 0) call.p[i] = spec_.arena->at(c.arg[i].at);
  }
  open(c.workspace, true);
  open(c.packed, true);
  if (c.workspace.region_bytes != 0) call.args.ws = spec_.arena->at(c.workspace.at);
  const LoadedKernel& kernel = kernels_.at(static_cast<size_t>(c.kernel));

  reply.mxcsr_before = _mm_getcsr();
  if (kernel.pack != nullptr) {
    crash_->stage = static_cast<uint32_t>(Stage::kPack);
    KernelArgs constants(d, c.axes.data());
    for (size_t i = 0; i < d.schema().args.size(); ++i)
      if (d.schema().args[i].constant) constants.p[i] = call.p[i];
    kernel.pack(&constants.args, spec_.arena->at(c.packed.at));
    if (!off.has(Defence::kReadOnlyConstants))
      mprotect(spec_.arena->at(c.packed.region), static_cast<size_t>(c.packed.region_bytes), PROT_READ);
    call.args.packed = spec_.arena->at(c.packed.at);
  }
  const uint64_t arguments = call.fingerprint();
  crash_->stage = static_cast<uint32_t>(Stage::kKernel);
  if (c.split == Split::kThreads) {
    launch(kernel, call.args, c.axes.data(), executor_);
  } else {
    for (size_t i = 0; i < kernel.phases.size(); ++i) {
      crash_->phase = static_cast<uint32_t>(i);
      const int64_t tasks = kernel.plan->phases[i].tasks(c.axes.data());
      if (c.split == Split::kWhole)
        kernel.phases[i](&call.args, 0, tasks);
      else
        split_shuffled(kernel.phases[i], call.args, tasks, c.seed + i);
    }
  }
  crash_->stage = static_cast<uint32_t>(Stage::kHarness);
  reply.mxcsr_after = off.has(Defence::kMxcsr) ? reply.mxcsr_before : _mm_getcsr();
  reply.arguments_changed = call.fingerprint() != arguments && !off.has(Defence::kArgumentPrint) ? 1 : 0;
  _mm_setcsr(reply.mxcsr_before);
  return {};
}

Status CellServer::block(const BlockCommand& c) {
  if (!rig_) return dispatch::internal("block without a timing before it");
  auto& reply = spec_.arena->mailbox<CellReply>(kCellReplyAt)->time;
  return rig_->repeat(c.side, c.calls, c.verify_call, reply.verified_set);
}

}  // namespace niche::evolve::judge
