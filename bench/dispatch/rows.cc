#include "bench/dispatch/rows.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "dispatch/devices/cpu/cpu_info.h"
#include "dispatch/epoch.h"

namespace niche::bench {

bool write_json(const std::string& file, const std::vector<Row>& rows) {
  nlohmann::json j;
  j["machine"] = dispatch::CpuInfo::detect().model_name;
  j["commit"] = NICHE_COMMIT;
  j["batch_calls"] = kBatch;
  j["membarrier"] = dispatch::RealPlatform::asymmetric_available();
  for (const Row& r : rows) {
    const Figures f = r.best();
    j["rows"].push_back({{"subject", r.subject},
                         {"case", r.name},
                         {"threads", r.threads},
                         {"routes", r.routes},
                         {"p50_ns", f.p50},
                         {"p99_ns", f.p99},
                         {"p999_ns", f.p999},
                         {"ns_per_op", f.mean},
                         {"ns_per_op_median_round", r.median_mean()}});
  }
  std::ofstream out(file);
  out << j.dump(1) << "\n";
  return static_cast<bool>(out);
}

}  // namespace niche::bench
