// The figures of one subject in one case, and their JSON form.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace niche::bench {

inline constexpr int kBatch = 32;  // calls a timed batch

struct Figures {
  double p50 = 0, p99 = 0, p999 = 0, mean = 0;
};

struct Row {
  std::string subject, name;
  int threads;
  uint32_t routes;
  std::vector<Figures> rounds;
  // The round that was least disturbed: what else a shared machine does only ever adds.
  Figures best() const {
    return *std::min_element(rounds.begin(), rounds.end(),
                             [](const Figures& a, const Figures& b) { return a.mean < b.mean; });
  }
  double median_mean() const {
    std::vector<double> v;
    for (const Figures& f : rounds) v.push_back(f.mean);
    std::nth_element(v.begin(), v.begin() + static_cast<long>(v.size() / 2), v.end());
    return v[v.size() / 2];
  }
};

// False: the file could not be written.
bool write_json(const std::string& file, const std::vector<Row>& rows);

}  // namespace niche::bench
