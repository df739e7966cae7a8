#include "evolve/judge_device/device_digest.h"

#include <algorithm>
#include <array>

#include "evolve/cuda_plan_text.h"

namespace niche::evolve {
namespace {

constexpr int kWarp = 32;
constexpr int kRegisterUnit = 256, kParts = 4;
constexpr int kSharedUnit = 128, kSharedOfTheSystem = 1024;
constexpr double kL2BytesAClock = 5120.0 / 108;

// Flops a clock of one multiprocessor, dense, and the blocks that it holds. From the whitepapers: 312 TFLOP/s of an
// A100 (108 at 1.41 GHz), 362 of an L40S (142 at 2.52), 989 of an H100 SXM (132 at 1.83), 2,250 of a B200 (148 at
// 1.85); blocks from the CUDA C++ Programming Guide, table of compute capabilities.
struct Rates {
  int capability;
  double tensor16, fma32;
  int blocks;
};
constexpr std::array kRates = {Rates{80, 2048, 128, 32},  Rates{86, 1024, 256, 16},
                               Rates{89, 1024, 256, 24},  Rates{90, 4096, 256, 32},
                               Rates{100, 8192, 256, 32}, Rates{120, 1024, 256, 24}};

// Of the newest that is not newer.
const Rates& rates_of(int capability) {
  const Rates* found = &kRates.front();
  for (const Rates& r : kRates)
    if (r.capability <= capability) found = &r;
  return *found;
}

int64_t blocks_of(const dispatch::CudaPhase& phase, const dispatch::Problem& problem, int multiprocessors) {
  int64_t n = std::max<int64_t>(1, cuda_blocks_wanted(phase, problem.axes.data()));
  if (phase.blocks_per_sm > 0) n = std::min<int64_t>(n, int64_t{phase.blocks_per_sm} * multiprocessors);
  const int64_t cluster = std::max(1, phase.cluster);
  return (n + cluster - 1) / cluster * cluster;
}

void add_launch(const DevicePeaks& peaks, const CubinInfo& cubin, const dispatch::CudaLaunchPlan& plan,
                const dispatch::Problem& problem, Digest* d) {
  const int multiprocessors =
      plan.sm_count > 0 ? std::min(plan.sm_count, peaks.multiprocessors) : peaks.multiprocessors;
  const dispatch::CudaPhase* largest = nullptr;
  for (const dispatch::CudaPhase& p : plan.phases) {
    const int64_t blocks = blocks_of(p, problem, multiprocessors);
    if (largest != nullptr && blocks * p.threads <= d->blocks * largest->threads) continue;
    largest = &p;
    d->blocks = blocks;
  }
  if (largest == nullptr) return;
  d->symbol = largest->symbol;
  d->threads = largest->threads;
  d->shared_bytes = largest->shared_bytes;
  const CubinKernel* k = cubin.find(largest->symbol);
  if (k != nullptr) {
    d->registers = k->registers;
    d->shared_bytes += std::max(0, k->static_shared_bytes);
  }
  // Of all launches: a spill anywhere is one.
  for (const CubinKernel& each : cubin.kernels)
    d->spill_bytes = std::max(d->spill_bytes, each.spill_store_bytes < 0 && each.spill_load_bytes < 0
                                                  ? each.stack_bytes
                                                  : each.spill_store_bytes + each.spill_load_bytes);
  Occupancy o = occupancy_of(peaks, d->registers, d->threads, d->shared_bytes);
  if (largest->blocks_per_sm > 0 && largest->blocks_per_sm < o.blocks_per_sm) {
    o.warps *= static_cast<double>(largest->blocks_per_sm) / o.blocks_per_sm;
    o.blocks_per_sm = largest->blocks_per_sm;
    o.limiter = "its own grid";
  }
  d->blocks_per_sm = o.blocks_per_sm;
  d->occupancy = o.warps;
  d->limiter = o.limiter;
  if (o.blocks_per_sm > 0)
    d->waves =
        static_cast<double>(d->blocks) / (static_cast<double>(o.blocks_per_sm) * peaks.multiprocessors);
}

}  // namespace

DevicePeaks DevicePeaks::of(const dispatch::CudaInfo& info) {
  const Rates& rates = rates_of(info.major * 10 + info.minor);
  const double clock_ghz = info.sm_clock_khz * 1e-6;
  DevicePeaks p;
  p.multiprocessors = info.sm_count;
  p.threads_per_sm = info.threads_per_sm;
  p.registers_per_sm = info.registers_per_sm;
  p.shared_bytes_per_sm = info.shared_bytes_per_sm;
  p.blocks_per_sm = rates.blocks;
  p.l2_bytes = info.l2_bytes;
  // Two transfers a clock of the memory.
  p.dram = 2 * info.memory_clock_khz * 1e-6 * info.memory_bus_bits / 8;
  p.l2 = kL2BytesAClock * info.sm_count * clock_ghz;
  p.tensor16 = rates.tensor16 * info.sm_count * clock_ghz;
  p.fma32 = rates.fma32 * info.sm_count * clock_ghz;
  return p;
}

Occupancy occupancy_of(const DevicePeaks& peaks, int registers, int threads, int shared_bytes) {
  Occupancy o;
  if (threads <= 0 || peaks.threads_per_sm <= 0) return o;
  const int warps = (threads + kWarp - 1) / kWarp, warps_max = peaks.threads_per_sm / kWarp;
  // The first of those that are alike is named: registers and shared memory are what a schedule can give up.
  std::array<std::pair<const char*, int>, 4> limits = {{{"threads", warps_max / warps},
                                                        {"blocks", peaks.blocks_per_sm},
                                                        {"registers", 1 << 20},
                                                        {"shared memory", 1 << 20}}};
  if (registers > 0) {
    const int a_warp = (registers * kWarp + kRegisterUnit - 1) / kRegisterUnit * kRegisterUnit;
    limits[2].second = kParts * (peaks.registers_per_sm / kParts / a_warp) / warps;
  }
  const int a_block = (shared_bytes + kSharedOfTheSystem + kSharedUnit - 1) / kSharedUnit * kSharedUnit;
  limits[3].second = peaks.shared_bytes_per_sm / a_block;
  const auto least = std::min_element(limits.begin(), limits.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  o.blocks_per_sm = least->second;
  o.limiter = least->first;
  o.warps = static_cast<double>(o.blocks_per_sm * warps) / warps_max;
  return o;
}

bool uses_matrix_pipe(std::string_view text) {
  // What every text starts with has the wrappers; what counts is who calls them.
  if (text.starts_with(cuda_preamble())) text.remove_prefix(cuda_preamble().size());
  for (const char* word : {"mma.sync", "wgmma.mma_async", "tcgen05.mma", "mma<", "mma_tf32("})
    if (text.find(word) != std::string_view::npos) return true;
  return false;
}

Digest compute_digest(const DevicePeaks& peaks, const CubinInfo& cubin, const dispatch::CudaLaunchPlan& plan,
                      const Measured& m) {
  Digest d;
  for (int axis : m.problem.definition->var_axes())
    d.var_axes.push_back(m.problem.axes[static_cast<size_t>(axis)]);
  d.kernel_us = m.kernel_ns * 1e-3;
  d.multiprocessors = peaks.multiprocessors;
  add_launch(peaks, cubin, plan, m.problem, &d);
  if (!(m.kernel_ns > 0)) return d;
  // Two-byte products may use the matrix pipe, whether this kernel does or not; fp32 ones do where they are split into
  // tf32, which has half the rate, and takes three products for one (one alone errs too much).
  const bool narrow = dispatch::is_float(m.problem.definition->dtype()) &&
                      dispatch::dtype_bytes(m.problem.definition->dtype()) == 2;
  const double matrix_peak = narrow ? peaks.tensor16 : peaks.tensor16 / 6;
  const double flops_peak = narrow || m.matrix_pipe ? matrix_peak : peaks.fma32,
               bytes_peak = m.from_dram ? peaks.dram : peaks.l2;
  if (m.from_dram) d.dram = m.cost.bytes / m.kernel_ns / peaks.dram;
  if (peaks.l2 > 0) d.l2 = m.cost.bytes / m.kernel_ns / peaks.l2;
  const double flops = m.cost.flops / m.kernel_ns;
  if (m.matrix_pipe && matrix_peak > 0)
    d.tensor = flops / matrix_peak;
  else if (peaks.fma32 > 0)
    d.fma = flops / peaks.fma32;
  if (m.cost.bytes > 0) d.flops_per_byte = m.cost.flops / m.cost.bytes;
  if (bytes_peak > 0) d.ridge = flops_peak / bytes_peak;
  if (bytes_peak > 0 && flops_peak > 0)
    d.roof = std::max(m.cost.bytes / bytes_peak, m.cost.flops / flops_peak) / m.kernel_ns;
  return d;
}

}  // namespace niche::evolve
