#include "bench/ops_cpu/problems.h"

namespace niche::bench {

std::vector<BenchProblem> problems() {
  std::vector<BenchProblem> all;
  for (auto [b, l] : {std::pair<int64_t, int64_t>{1, 200}, {4, 200}, {8, 200}, {1, 37}, {3, 90}})
    all.push_back({"conv1d", {{"B", b}, {"L", l}, {"Ci", 96}, {"Co", 96}, {"K", 3}}});
  all.push_back({"conv1d", {{"B", 8}, {"L", 512}, {"Ci", 64}, {"Co", 64}, {"K", 3}}});
  all.push_back({"conv1d", {{"B", 4}, {"L", 200}, {"Ci", 96}, {"Co", 96}, {"K", 5}}});
  for (int64_t b : {1, 4, 8, 16})
    all.push_back({"optimized_fm", {{"B", b}, {"N", 40}, {"D", 224}, {"K", 448}}});
  all.push_back({"optimized_fm", {{"B", 16}, {"N", 24}, {"D", 224}, {"K", 2198}}});
  for (int64_t b : {1, 4, 16}) all.push_back({"pffn", {{"B", b}, {"N", 150}, {"D", 96}, {"K", 192}}});
  all.push_back({"pffn", {{"B", 4}, {"N", 200}, {"D", 256}, {"K", 160}}});
  all.push_back(
      {"ikbo_linear_compression", {{"M", 108}, {"N", 64}, {"Kc", 216}, {"Ku", 294}, {"B", 70}, {"U", 1}}});
  all.push_back(
      {"ikbo_linear_compression", {{"M", 433}, {"N", 256}, {"Kc", 866}, {"Ku", 1178}, {"B", 4}, {"U", 1}}});
  return all;
}

}  // namespace niche::bench
