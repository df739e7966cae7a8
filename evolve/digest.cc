#include "evolve/digest.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "dispatch/base/format.h"

namespace niche::evolve {
namespace {

using dispatch::format;
using nlohmann::json;

// From these shares on a unit is what limits, with the margin that is left below a real peak: copies reach 87 % of an
// H200's stated bandwidth, its best matrix products some 80 % of the tensor peak at that clock.
constexpr double kAtRoof = 0.8;
constexpr double kNearPeak = 0.6;
// So far below its roof a kernel waits, whatever it would be bound by. An H200's rms_norm f16 of 256 rows: 11 % of the memory
// roof, and counters saw no unit above 41 %.
constexpr double kFarFromRoof = 0.25;
constexpr double kLaunchUs = 2;  // an empty kernel takes 0.75 us in a graph, a dependent pair twice that
constexpr double kLowOccupancy = 0.3;
constexpr double kTail = 1.25;  // whole waves over waves

std::string percent(double share) { return format("%.0f %%", 100 * share); }

// What was counted, where something was; else what was computed.
double share(const Digest& d, double ProfilerCounters::*counted, double computed) {
  return d.counters && (*d.counters).*counted >= 0 ? (*d.counters).*counted : computed;
}

bool memory_side(const Digest& d) { return d.flops_per_byte < d.ridge; }

std::string shares(const Digest& d) {
  std::string t;
  const auto add = [&](const char* name, double v) {
    if (v >= 0) t += (t.empty() ? "" : ", ") + std::string(name) + ' ' + percent(v);
  };
  add("DRAM", d.dram);
  add("L2", d.l2);
  add("tensor", d.tensor);
  add("FMA", d.fma);
  return t;
}

// What a damaged or a foreign store holds may be anything.
bool plausible(const Digest& d) {
  constexpr double kMost = 1e12;
  constexpr size_t kNameMax = 256;
  for (const double v : {d.kernel_us, d.flops_per_byte, d.ridge, d.occupancy, d.waves})
    if (!(v >= 0 && v <= kMost)) return false;
  for (const double v : {d.dram, d.l2, d.tensor, d.fma, d.roof})
    if (!(v >= -1 && v <= kMost)) return false;
  for (const int64_t v : {int64_t{d.registers}, int64_t{d.threads}, int64_t{d.shared_bytes}, d.blocks,
                          int64_t{d.blocks_per_sm}, int64_t{d.spill_bytes}, int64_t{d.multiprocessors}})
    if (v < 0) return false;
  return d.symbol.size() <= kNameMax && d.limiter.size() <= kNameMax;
}

}  // namespace

Diagnosis diagnose(const Digest& d) {
  const double dram = share(d, &ProfilerCounters::dram, d.dram), l2 = share(d, &ProfilerCounters::l2, d.l2),
               tensor = share(d, &ProfilerCounters::tensor, d.tensor);
  const std::string topic = memory_side(d) ? "memory" : "compute";
  if (d.spill_bytes > 0)
    return {"spills",
            format("%d bytes of a thread's values are spilled to memory (%d registers at %d threads a block)",
                   d.spill_bytes, d.registers, d.threads),
            "spills"};
  if (d.roof >= kAtRoof)
    return {"roof", "at " + percent(d.roof) + " of the " + topic + " roof: little is left to gain", topic};
  if (d.kernel_us > 0 && d.kernel_us < kLaunchUs)
    return {"launch", format("%.2f us, of which a launch is about one", d.kernel_us), "latency"};
  if (d.blocks > 0 && d.multiprocessors > 0 && d.blocks < d.multiprocessors)
    return {"grid",
            format("%lld blocks on %d multiprocessors: the others idle", static_cast<long long>(d.blocks),
                   d.multiprocessors),
            "latency"};
  if (d.waves > 1 && std::ceil(d.waves) / d.waves > kTail)
    return {"grid", format("%.2f waves of blocks: the last one leaves the device mostly idle", d.waves),
            "latency"};
  if (d.counters && !d.counters->stalls.empty() &&
      std::max({dram, l2, tensor, d.counters->l1, d.counters->issue}) < kNearPeak)
    return {"latency",
            "no unit is above " + percent(kNearPeak) + "; warps wait most for " +
                d.counters->stalls[0].first + " (" + percent(d.counters->stalls[0].second) + " of all waits)",
            "latency"};
  // Kernels of matrix instructions want few, wide warps; the others hide latency by many.
  if (d.occupancy > 0 && d.occupancy < kLowOccupancy && d.tensor < 0 && std::max(dram, l2) < kNearPeak)
    return {"occupancy",
            "only " + percent(d.occupancy) + " of the warps fit, limited by " + d.limiter +
                format(" (%d registers, %d threads, %d bytes of shared memory a block)", d.registers,
                       d.threads, d.shared_bytes),
            "occupancy"};
  const bool counted_near = d.counters && std::max({dram, l2, tensor}) >= kNearPeak;
  if (d.roof >= 0 && d.roof < kFarFromRoof && !counted_near)
    return {"latency",
            "at " + percent(d.roof) + " of the " + topic + " roof: no unit is near its peak, so warps wait",
            "latency"};
  if (memory_side(d))
    return {"memory",
            format("%.3g flops a byte, left of the ridge at %.3g: ", d.flops_per_byte, d.ridge) +
                (dram >= l2 ? "DRAM at " + percent(dram) : "the L2 at " + percent(l2)),
            "memory"};
  return {"compute",
          format("%.3g flops a byte, right of the ridge at %.3g: ", d.flops_per_byte, d.ridge) +
              (tensor >= 0 ? "the tensor pipe at " + percent(tensor)
                           : "no matrix instructions, FMA at " + percent(std::max(d.fma, 0.0))),
          "compute"};
}

std::string diagnosis_text(const Diagnosis& d) { return d.bottleneck + ": " + d.because; }

std::string digest_text(const Digest& d) {
  std::string t = format("%.2f us: ", d.kernel_us) + shares(d);
  if (d.roof >= 0)
    t += "; " + percent(d.roof) + " of the " + (memory_side(d) ? "memory" : "compute") +
         format(" roof (%.3g flops a byte, ridge %.3g)", d.flops_per_byte, d.ridge);
  if (d.threads > 0)
    t += "; occupancy " + percent(d.occupancy) + " by " + d.limiter +
         format(" (%d registers, %d threads, %d B shared, %d a multiprocessor, %.2f waves)", d.registers,
                d.threads, d.shared_bytes, d.blocks_per_sm, d.waves);
  t += d.spill_bytes > 0 ? format("; spills %d B", d.spill_bytes) : std::string("; no spills");
  if (!d.counters) return t;
  const ProfilerCounters& c = *d.counters;
  std::string counted;
  const std::pair<const char*, double> named[] = {{"DRAM", c.dram},
                                                  {"L2", c.l2},
                                                  {"L1", c.l1},
                                                  {"tensor", c.tensor},
                                                  {"issue", c.issue},
                                                  {"warps", c.occupancy},
                                                  {"loads' sectors", c.load_sectors},
                                                  {"stores' sectors", c.store_sectors}};
  for (const auto& [name, v] : named)
    if (v >= 0) counted += (counted.empty() ? "" : ", ") + std::string(name) + ' ' + percent(v);
  t += "; counted: " + counted;
  for (size_t i = 0; i < c.stalls.size(); ++i)
    t += (i == 0 ? "; waits: " : ", ") + c.stalls[i].first + ' ' + percent(c.stalls[i].second);
  return t;
}

std::string digest_to_json(const Digest& d) {
  json j = {{"var_axes", d.var_axes},
            {"kernel_us", d.kernel_us},
            {"dram", d.dram},
            {"l2", d.l2},
            {"tensor", d.tensor},
            {"fma", d.fma},
            {"flops_per_byte", d.flops_per_byte},
            {"ridge", d.ridge},
            {"roof", d.roof},
            {"symbol", d.symbol},
            {"registers", d.registers},
            {"threads", d.threads},
            {"shared_bytes", d.shared_bytes},
            {"blocks", d.blocks},
            {"blocks_per_sm", d.blocks_per_sm},
            {"occupancy", d.occupancy},
            {"limiter", d.limiter},
            {"waves", d.waves},
            {"spill_bytes", d.spill_bytes},
            {"multiprocessors", d.multiprocessors}};
  if (d.counters) {
    const ProfilerCounters& c = *d.counters;
    json stalls = json::array();
    for (const auto& [name, v] : c.stalls) stalls.push_back({name, v});
    j["counters"] = {{"us", c.us},
                     {"dram", c.dram},
                     {"l2", c.l2},
                     {"l1", c.l1},
                     {"tensor", c.tensor},
                     {"issue", c.issue},
                     {"occupancy", c.occupancy},
                     {"load_sectors", c.load_sectors},
                     {"store_sectors", c.store_sectors},
                     {"occupancy_limiter", c.occupancy_limiter},
                     {"stalls", stalls}};
  }
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

dispatch::Result<Digest> digest_from_json(const std::string& text) {
  try {
    const json j = json::parse(text);
    Digest d;
    const auto get = [](const json& from, const char* key, auto* to) {
      if (from.contains(key) && !from.at(key).is_null()) from.at(key).get_to(*to);
    };
    get(j, "var_axes", &d.var_axes);
    get(j, "kernel_us", &d.kernel_us);
    get(j, "dram", &d.dram), get(j, "l2", &d.l2), get(j, "tensor", &d.tensor), get(j, "fma", &d.fma);
    get(j, "flops_per_byte", &d.flops_per_byte), get(j, "ridge", &d.ridge), get(j, "roof", &d.roof);
    get(j, "symbol", &d.symbol);
    get(j, "registers", &d.registers), get(j, "threads", &d.threads), get(j, "shared_bytes", &d.shared_bytes);
    get(j, "blocks", &d.blocks), get(j, "blocks_per_sm", &d.blocks_per_sm);
    get(j, "occupancy", &d.occupancy), get(j, "limiter", &d.limiter), get(j, "waves", &d.waves);
    get(j, "spill_bytes", &d.spill_bytes), get(j, "multiprocessors", &d.multiprocessors);
    if (!j.is_object()) return dispatch::corrupt("digest: no object");
    if (!plausible(d)) return dispatch::corrupt("digest: figures that none can have");
    if (!j.contains("counters")) return d;
    const json& from = j.at("counters");
    if (!from.is_object()) return dispatch::corrupt("digest: counters are no object");
    ProfilerCounters c;
    get(from, "us", &c.us), get(from, "dram", &c.dram), get(from, "l2", &c.l2), get(from, "l1", &c.l1);
    get(from, "tensor", &c.tensor), get(from, "issue", &c.issue), get(from, "occupancy", &c.occupancy);
    get(from, "load_sectors", &c.load_sectors), get(from, "store_sectors", &c.store_sectors);
    get(from, "occupancy_limiter", &c.occupancy_limiter);
    get(from, "stalls", &c.stalls);
    d.counters = std::move(c);
    return d;
  } catch (const std::exception& e) {
    return dispatch::corrupt(std::string("digest: ") + e.what());
  }
}

}  // namespace niche::evolve
