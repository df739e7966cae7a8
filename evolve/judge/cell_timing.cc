#include "evolve/judge/cell_timing.h"

#include <immintrin.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <x86intrin.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace niche::evolve::judge {
namespace {

using dispatch::ArgRole;

constexpr int64_t kLine = 64;

uint64_t ticks_begin() {
  _mm_lfence();
  const uint64_t t = __rdtsc();
  _mm_lfence();
  return t;
}
uint64_t ticks_end() {
  unsigned cpu;
  const uint64_t t = __rdtscp(&cpu);
  _mm_lfence();
  return t;
}

void touch(const uint8_t* p, int64_t bytes) {
  uint8_t sum = 0;
  for (int64_t i = 0; i < bytes; i += kLine) sum = static_cast<uint8_t>(sum + p[i]);
  asm volatile("" : : "r"(sum));
}

void flush(const uint8_t* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kLine) _mm_clflush(p + i);
  if (bytes > 0) _mm_clflush(p + bytes - 1);
}

rusage usage(int threads) {
  rusage u{};
  getrusage(threads > 1 ? RUSAGE_SELF : RUSAGE_THREAD, &u);
  return u;
}
int64_t page_faults(const rusage& u) { return u.ru_minflt + u.ru_majflt; }
int64_t cpu_us(const rusage& u) {
  return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1'000'000 + u.ru_utime.tv_usec + u.ru_stime.tv_usec;
}
// What the system did between two moments beside what was timed: context switches, and page faults of the library's calls.
// A candidate's faults may be its own doing, so that they count as its time.
int64_t disturbances(int threads, bool candidate) {
  const rusage u = usage(threads);
  return u.ru_nvcsw + u.ru_nivcsw + (candidate ? 0 : page_faults(u));
}

// Settled: so many rounds of calls without a page fault. Bounds for operators whose calls never are (outputs of more than
// 32 MiB come from fresh pages each time, in a server too).
constexpr int kSettledRounds = 3, kSettleRoundsMax = 64;
constexpr int64_t kSettleCpuUs = 20'000;

uint8_t* aligned(int64_t bytes) {
  return static_cast<uint8_t*>(bytes > 0 ? std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64))
                                         : nullptr);
}

// Below the caller's frame, where a kernel may have left something. As much as the stack's limit leaves it.
constexpr size_t kDeadStackBytes = 1 << 20;
__attribute__((noinline)) void clear_dead_stack() {
  volatile uint8_t dead[kDeadStackBytes];
  for (size_t i = 0; i < sizeof dead; i += 1) dead[i] = 0;
}

}  // namespace

// One set of inputs in the operator's own form.
struct TimingRig::Set {
  const ArgPlacements* placed = nullptr;
  std::unique_ptr<KernelArgs> call;
  std::unique_ptr<dispatch::NativeArgs> native;
};

TimingRig::TimingRig(const CellSpec& spec, const std::vector<LoadedKernel>& kernels,
                     const dispatch::Executor& executor, CrashPage* crash, const TimeCommand& command)
    : spec_(spec),
      definition_(*spec.definition),
      executor_(executor),
      crash_(crash),
      command_(command),
      workspace_(aligned(command.kernel >= 0 ? command.workspace_bytes : 0), std::free),
      random_(command.seed) {
  problem_.definition = spec.definition;
  problem_.axes = command_.axes;
  recent_.fill(SIZE_MAX);
  if (command_.kernel >= 0) kernel_ = &kernels.at(static_cast<size_t>(command_.kernel));
  const auto& args = definition_.schema().args;
  for (int s = 0; s < command_.sets; ++s) {
    auto set = std::make_unique<Set>();
    set->placed = &command_.set[s];
    set->call = std::make_unique<KernelArgs>(definition_, command_.axes.data());
    for (size_t i = 0; i < args.size(); ++i) {
      const Placement& p = args[i].role == ArgRole::kInOut ? command_.work[i] : (*set->placed)[i];
      if (p.region_bytes != 0 && args[i].role != ArgRole::kOut) set->call->p[i] = at(p.at);
    }
    // Mapped into this process now, not while pairs are taken. The kernel maps sixteen pages a fault; the last page, where an
    // argument begins within its first one, is one more.
    for (const Placement& p : *set->placed)
      if (p.region_bytes != 0) {
        for (int64_t b = 0; b < p.bytes; b += kPage) touch(at(p.at) + b, 1);
        if (p.bytes > 0) touch(at(p.at) + p.bytes - 1, 1);
      }
    set->native = spec.op->wrap(problem_, set->call->p.data());
    set->call->args.ws = workspace_.get();
    sets_.push_back(std::move(set));
  }
  // Written to, as copy_outputs() and prepare() will: a page that was only read faults once more.
  for (const auto* written : {&command_.verify, &command_.work})
    for (const Placement& p : *written)
      if (p.region_bytes != 0 && p.bytes > 0) {
        for (int64_t b = 0; b < p.bytes; b += kPage) at(p.at)[b] = 0;
        at(p.at)[p.bytes - 1] = 0;
      }
}

dispatch::Status TimingRig::pack() {
  if (kernel_ == nullptr || kernel_->pack == nullptr || packed_ != nullptr) return {};
  void* p = mmap(nullptr, static_cast<size_t>(command_.packed_bytes), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return dispatch::errno_status("map packed constants");
  packed_ = static_cast<uint8_t*>(p);
  const auto& args = definition_.schema().args;
  KernelArgs constants(definition_, command_.axes.data());
  for (size_t i = 0; i < args.size(); ++i)
    if (args[i].constant) constants.p[i] = sets_[0]->call->p[i];
  crash_->stage = static_cast<uint32_t>(Stage::kPack);
  kernel_->pack(&constants.args, packed_);
  crash_->stage = static_cast<uint32_t>(Stage::kHarness);
  if (!spec_.defences_off.has(Defence::kReadOnlyConstants))
    mprotect(packed_, static_cast<size_t>(command_.packed_bytes), PROT_READ);
  for (auto& set : sets_) set->call->args.packed = packed_;
  return {};
}

TimingRig::~TimingRig() {
  if (packed_ != nullptr) munmap(packed_, static_cast<size_t>(command_.packed_bytes));
}

size_t TimingRig::next_set(int side) {
  if (spec_.defences_off.has(Defence::kOwnSets)) return 0;
  if (!is_kernel(side)) {
    const size_t set = random_() % sets_.size();
    recent_[recent_at_++ % recent_.size()] = set;
    return set;
  }
  for (int attempt = 0;; ++attempt) {
    if (unseen_.empty()) {
      if (!spec_.defences_off.has(Defence::kDeadStack)) clear_dead_stack();
      unseen_.resize(sets_.size());
      std::iota(unseen_.begin(), unseen_.end(), size_t{0});
    }
    const size_t i = random_() % unseen_.size();
    const size_t set = unseen_[i];
    // The library's last answers: of this pair and the one before.
    const size_t last = static_cast<size_t>(2 * command_.calls);
    bool fresh = true;
    for (size_t back = 1; back <= std::min({last, recent_at_, recent_.size()}); ++back)
      fresh = fresh && recent_[(recent_at_ - back) % recent_.size()] != set;
    if (!fresh && attempt < 8) continue;
    unseen_[i] = unseen_.back();
    unseen_.pop_back();
    return set;
  }
}

void TimingRig::call(int side, Set& set) {
  if (is_kernel(side)) {
    set.native->make_outputs();
    set.native->outputs(set.call->p.data());
    launch(*kernel_, set.call->args, command_.axes.data(), executor_);
  } else {
    const int form = command_.kernel == kForms ? command_.form[side] : command_.form[0];
    spec_.op->run_fallback(form, {&definition_, &set.call->args, set.native->get()});
  }
}

void TimingRig::prepare(int side, Set& set) {
  const auto& args = definition_.schema().args;
  for (size_t i = 0; i < args.size(); ++i) {
    const Placement& p = (*set.placed)[i];
    if (p.region_bytes == 0) continue;
    if (args[i].role == ArgRole::kInOut) {
      const Placement& work = command_.work[i];
      std::memcpy(at(work.at), at(p.at), static_cast<size_t>(p.bytes));
      if (command_.cold != 0) flush(at(work.at), work.bytes);
    } else if (command_.cold != 0) {
      flush(at(p.at), p.bytes);
    } else {
      touch(at(p.at), p.bytes);
    }
  }
  if (!is_kernel(side)) return;
  // Contents of the workspace carry nothing from call to call.
  if (workspace_ && !spec_.defences_off.has(Defence::kWorkspaceErased))
    std::memset(workspace_.get(), static_cast<int>(random_() & 0xff),
                static_cast<size_t>(command_.workspace_bytes));
  if (command_.cold == 0) {
    if (packed_ != nullptr) touch(packed_, command_.packed_bytes);
  } else {
    if (packed_ != nullptr) flush(packed_, command_.packed_bytes);
    if (workspace_) flush(workspace_.get(), command_.workspace_bytes);
  }
}

// As warm as prepare() leaves it, at the same cost for either side.
void TimingRig::warm(Set& set) {
  const auto& args = definition_.schema().args;
  for (size_t i = 0; i < args.size(); ++i) {
    const Placement& p = (*set.placed)[i];
    if (p.region_bytes == 0) continue;
    if (args[i].role == ArgRole::kInOut)
      std::memcpy(at(command_.work[i].at), at(p.at), static_cast<size_t>(p.bytes));
    else
      touch(at(p.at), p.bytes);
  }
  if (packed_ != nullptr) touch(packed_, command_.packed_bytes);
}

// Outputs are overwritten: whoever gets the block next must not find the answer there. In the cold state the
// block is flushed too.
void TimingRig::finish(Set& set) {
  std::array<void*, dispatch::kMaxArgs> p{};
  set.native->outputs(p.data());
  for (size_t i = 0; i < definition_.schema().args.size(); ++i) {
    if (p[i] == nullptr) continue;
    const int64_t bytes = problem_.arg_bytes(static_cast<int>(i));
    if (!spec_.defences_off.has(Defence::kOutputsErased))
      std::memset(p[i], static_cast<int>(random_() & 0x7f), static_cast<size_t>(bytes));
    if (command_.cold != 0) flush(static_cast<const uint8_t*>(p[i]), bytes);
  }
  _mm_mfence();
  set.native->drop_outputs();
}

double TimingRig::observe(int side, Set& set) {
  prepare(side, set);
  if (is_kernel(side)) {
    // Where the outputs will be is not known yet: what the last call left there is no part of the comparison.
    set.call->args.packed = packed_;
    for (size_t i = 0; i < definition_.schema().args.size(); ++i)
      if (definition_.schema().args[i].role == ArgRole::kOut) set.call->p[i] = nullptr;
  }
  const uint64_t arguments = set.call->fingerprint();
  _mm_mfence();
  crash_->stage = static_cast<uint32_t>(is_kernel(side) ? Stage::kKernel : Stage::kFallback);
  const uint64_t begin = ticks_begin();
  call(side, set);
  uint64_t end = ticks_end();
  if (command_.kernel == kSelf && side == 1) {
    const auto delayed =
        begin + static_cast<uint64_t>(static_cast<double>(end - begin) * (1 + command_.self_delay));
    while (end < delayed) end = ticks_end();
  }
  crash_->stage = static_cast<uint32_t>(Stage::kHarness);
  if (is_kernel(side)) {
    std::array<void*, dispatch::kMaxArgs> outputs{};
    set.native->outputs(outputs.data());
    for (size_t i = 0; i < definition_.schema().args.size(); ++i)
      if (definition_.schema().args[i].role == ArgRole::kOut && set.call->p[i] == outputs[i])
        set.call->p[i] = nullptr;
    arguments_changed_ = arguments_changed_ || (set.call->fingerprint() != arguments &&
                                                !spec_.defences_off.has(Defence::kArgumentPrint));
  }
  return static_cast<double>(end - begin);
}

void TimingRig::copy_outputs(Set& set) {
  std::array<void*, dispatch::kMaxArgs> p{};
  set.native->outputs(p.data());
  const auto& args = definition_.schema().args;
  for (size_t i = 0; i < args.size(); ++i) {
    const Placement& to = command_.verify[i];
    if (to.region_bytes == 0) continue;
    const void* from = args[i].role == ArgRole::kInOut ? at(command_.work[i].at) : p[i];
    if (from != nullptr) std::memcpy(at(to.at), from, static_cast<size_t>(to.bytes));
  }
}

// Warm-up: library caches, the branch to each form, and the allocator. In a young process each call of a size may get another
// block, in pages that nobody touched (probably since an aligned block is cut and what is left is too small for the next
// request), until blocks come back; a server is past that. Two calls a side were not enough: softmax of 1,024 rows of 10
// took 87,000 cycles instead of 20,000 in 22 of a session's 72 screens, the library's 800,000 hardly changed, and what is
// 11 times faster was screened at 3 to 4.
dispatch::Status TimingRig::measure(TimeReply& reply) {
  reply.pairs = 0;
  reply.verified_set = -1;
  NICHE_RETURN_IF_ERROR(pack());
  // Here and not in a function of its own: every call finds its stack at one depth, as the test of the dead stack's defence needs.
  int settled = 0;
  int64_t start_us = 0;
  for (int round = 0; round < kSettleRoundsMax && settled < kSettledRounds; ++round) {
    const rusage before = usage(spec_.threads);
    for (int side = 0; side < sides(); ++side) {
      Set& set = *sets_[next_set(side)];
      observe(side, set);
      finish(set);
    }
    const rusage after = usage(spec_.threads);
    settled = page_faults(after) == page_faults(before) ? settled + 1 : 0;
    // The first round reads the library's code in from the page cache (370 faults, 4 ms on Zen 3): it is no part of the bound.
    if (round == 0)
      start_us = cpu_us(after);
    else if (cpu_us(after) - start_us > kSettleCpuUs)
      break;
  }
  std::array<int, kFormsMax> order{};
  for (int i = 0; i < command_.pairs && i < kPairsInCommand; ++i) {
    PairTime& pair = reply.pair[reply.pairs++];
    pair = {};
    std::iota(order.begin(), order.begin() + sides(), 0);
    std::shuffle(order.begin(), order.begin() + sides(), random_);
    for (int o = 0; o < sides(); ++o) {
      const int side = order[static_cast<size_t>(o)];
      double sum = 0;
      const int64_t before = disturbances(spec_.threads, is_kernel(side));
      for (int c = 0; c < command_.calls; ++c) {
        const size_t which = next_set(side);
        Set& set = *sets_[which];
        sum += observe(side, set);
        if (is_kernel(side) && i == command_.verify_pair && c == 0) {
          copy_outputs(set);
          reply.verified_set = static_cast<int32_t>(which);
        }
        finish(set);
      }
      if (disturbances(spec_.threads, is_kernel(side)) != before) pair.dropped = 1;
      pair.ticks[side] = sum / command_.calls;
    }
  }
  reply.arguments_changed = arguments_changed_ ? 1 : 0;
  return {};
}

dispatch::Status TimingRig::repeat(int side, int calls, int verify_call, int32_t& verified_set) {
  verified_set = -1;
  NICHE_RETURN_IF_ERROR(pack());
  for (int i = 0; i < calls; ++i) {
    const size_t which = static_cast<size_t>(i) % sets_.size();
    Set& set = *sets_[which];
    warm(set);
    crash_->stage = static_cast<uint32_t>(is_kernel(side) ? Stage::kKernel : Stage::kFallback);
    call(side, set);
    crash_->stage = static_cast<uint32_t>(Stage::kHarness);
    if (i == verify_call) {
      copy_outputs(set);
      verified_set = static_cast<int32_t>(which);
    }
    set.native->drop_outputs();
  }
  return {};
}

}  // namespace niche::evolve::judge
