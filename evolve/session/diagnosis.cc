#include "evolve/session/diagnosis.h"

#include <algorithm>

namespace niche::evolve {

std::map<std::string, double> digest_metrics(const Digest& d) {
  std::map<std::string, double> m;
  const ProfilerCounters none;
  const ProfilerCounters& c = d.counters ? *d.counters : none;
  const auto share = [&](const char* name, double counted, double computed) {
    const double v = counted >= 0 ? counted : computed;
    if (v >= 0) m[name] = 100 * v;
  };
  if (d.kernel_us > 0) m["kernel_us"] = d.kernel_us;
  share("dram_pct", c.dram, d.dram);
  share("l2_pct", c.l2, d.l2);
  share("tensor_pct", c.tensor, d.tensor);
  if (d.threads > 0) {
    share("occupancy_pct", -1, d.occupancy);
    m["waves"] = d.waves;
    m["spill_bytes"] = d.spill_bytes;
  }
  return m;
}

std::string kb_platform(const std::string& arch) {
  constexpr std::string_view kCuda = "cuda.sm_";
  if (!arch.starts_with(kCuda)) return arch;
  std::string number = arch.substr(kCuda.size());
  while (!number.empty() && (number.back() < '0' || number.back() > '9')) number.pop_back();
  return "nvidia.sm" + number;
}

const kb::Document* method_page(const kb::Library& library, const Digest& digest, const std::string& arch) {
  const Diagnosis diagnosis = diagnose(digest);
  const auto metrics = digest_metrics(digest);
  const std::string platform = kb_platform(arch);
  const kb::Document* best = nullptr;
  int most = -1;
  for (const kb::Document& d : library.documents()) {
    if (d.tier != "guidance" || d.platforms.empty() || !kb::platform_matches(d.platforms, platform) ||
        std::find(d.bottlenecks.begin(), d.bottlenecks.end(), diagnosis.topic) == d.bottlenecks.end())
      continue;
    int holding = 0;
    for (const kb::MetricTrigger& t : d.metrics)
      if (const auto at = metrics.find(t.name); at != metrics.end() && t.holds(at->second)) ++holding;
    if (holding > most) best = &d, most = holding;
  }
  return best;
}

std::string diagnosis_section(const Digest& digest, const std::string& whose, const kb::Document* page,
                              size_t bytes_max) {
  std::string t =
      "# What " + whose + " is limited by\n\n" + digest_text(digest) +
      "\n\nOne bottleneck: " + diagnosis_text(diagnose(digest)) +
      ".\nChange what this bottleneck asks for, and nothing else, so that the next measurement tells "
      "whether it helped.\n";
  if (page == nullptr) return t;
  t += "\nOne method, \"" + page->title + "\":\n\n";
  const size_t before = t.size();
  for (const kb::Module& m : page->modules)
    if (t.size() - before + m.text.size() <= bytes_max) t += m.text + '\n';
  return t;
}

}  // namespace niche::evolve
