#include "evolve/judge/cell_timing.h"

#include <immintrin.h>
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

int64_t switches(int threads) {
  rusage u{};
  getrusage(threads > 1 ? RUSAGE_SELF : RUSAGE_THREAD, &u);
  return u.ru_nvcsw + u.ru_nivcsw;
}

uint8_t* aligned(int64_t bytes) {
  return static_cast<uint8_t*>(bytes > 0 ? std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64))
                                         : nullptr);
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
      packed_(aligned(command.kernel >= 0 ? command.packed_bytes : 0), std::free),
      workspace_(aligned(command.kernel >= 0 ? command.workspace_bytes : 0), std::free),
      random_(command.seed) {
  problem_.definition = spec.definition;
  problem_.axes = command_.axes;
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
    set->native = spec.op->wrap(problem_, set->call->p.data());
    set->call->args.ws = workspace_.get();
    set->call->args.packed = packed_.get();
    sets_.push_back(std::move(set));
  }
  if (kernel_ == nullptr || kernel_->pack == nullptr) return;
  KernelArgs constants(definition_, command_.axes.data());
  for (size_t i = 0; i < args.size(); ++i)
    if (args[i].constant) constants.p[i] = sets_[0]->call->p[i];
  crash_->stage = static_cast<uint32_t>(Stage::kPack);
  kernel_->pack(&constants.args, packed_.get());
  crash_->stage = static_cast<uint32_t>(Stage::kHarness);
}

TimingRig::~TimingRig() = default;

void TimingRig::call(int side, Set& set) {
  if (is_kernel(side)) {
    set.native->make_outputs();
    set.native->outputs(set.call->p.data());
    launch(*kernel_, set.call->args, command_.axes.data(), executor_);
  } else {
    spec_.op->run_fallback(command_.form[side], {&definition_, &set.call->args, set.native->get()});
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
  if (workspace_)
    std::memset(workspace_.get(), static_cast<int>(random_() & 0xff),
                static_cast<size_t>(command_.workspace_bytes));
  if (command_.cold == 0) {
    if (packed_) touch(packed_.get(), command_.packed_bytes);
  } else {
    if (packed_) flush(packed_.get(), command_.packed_bytes);
    if (workspace_) flush(workspace_.get(), command_.workspace_bytes);
  }
}

// In the cold state the block that the next call's outputs will get is flushed too.
void TimingRig::finish(Set& set) {
  if (command_.cold != 0) {
    std::array<void*, dispatch::kMaxArgs> p{};
    set.native->outputs(p.data());
    for (size_t i = 0; i < definition_.schema().args.size(); ++i)
      if (p[i] != nullptr) flush(static_cast<const uint8_t*>(p[i]), problem_.arg_bytes(static_cast<int>(i)));
    _mm_mfence();
  }
  set.native->drop_outputs();
}

double TimingRig::observe(int side, Set& set) {
  prepare(side, set);
  _mm_mfence();
  crash_->stage = static_cast<uint32_t>(is_kernel(side) ? Stage::kKernel : Stage::kFallback);
  const uint64_t begin = ticks_begin();
  call(side, set);
  const uint64_t end = ticks_end();
  crash_->stage = static_cast<uint32_t>(Stage::kHarness);
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

dispatch::Status TimingRig::measure(TimeReply& reply) {
  reply.pairs = 0;
  reply.verified_set = -1;
  const auto pick = [&] { return static_cast<size_t>(random_() % sets_.size()); };
  // Warm-up: library caches, page faults of the outputs, the branch to each form.
  for (int side = 0; side < sides(); ++side)
    for (int i = 0; i < 2; ++i) {
      Set& set = *sets_[pick()];
      observe(side, set);
      finish(set);
    }
  std::array<int, kFormsMax> order{};
  for (int i = 0; i < command_.pairs && i < kPairsInCommand; ++i) {
    PairTime& pair = reply.pair[reply.pairs++];
    pair = {};
    std::iota(order.begin(), order.begin() + sides(), 0);
    std::shuffle(order.begin(), order.begin() + sides(), random_);
    // Both sides read the same values, each set prepared anew before each observation.
    std::array<size_t, kSetsMax> used{};
    for (int c = 0; c < command_.calls; ++c) used[static_cast<size_t>(c)] = pick();
    pair.set = static_cast<uint32_t>(used[0]);
    for (int o = 0; o < sides(); ++o) {
      const int side = order[static_cast<size_t>(o)];
      double sum = 0;
      const int64_t before = switches(spec_.threads);
      for (int c = 0; c < command_.calls; ++c) {
        Set& set = *sets_[used[static_cast<size_t>(c)]];
        sum += observe(side, set);
        if (is_kernel(side) && i == command_.verify_pair && c == 0) {
          copy_outputs(set);
          reply.verified_set = static_cast<int32_t>(used[0]);
        }
        finish(set);
      }
      if (switches(spec_.threads) != before) pair.dropped = 1;
      pair.ticks[side] = sum / command_.calls;
    }
  }
  return {};
}

dispatch::Status TimingRig::repeat(int side, int calls) {
  for (int i = 0; i < calls; ++i) {
    Set& set = *sets_[static_cast<size_t>(i) % sets_.size()];
    crash_->stage = static_cast<uint32_t>(is_kernel(side) ? Stage::kKernel : Stage::kFallback);
    call(side, set);
    crash_->stage = static_cast<uint32_t>(Stage::kHarness);
    set.native->drop_outputs();
  }
  return {};
}

}  // namespace niche::evolve::judge
