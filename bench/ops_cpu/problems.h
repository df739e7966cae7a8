// The problems of the ops_cpu benchmark: the sizes of the served ranker, and of the CPU tables in docs/.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace niche::bench {

struct BenchProblem {
  const char* op;
  std::vector<std::pair<std::string, int64_t>> axes;  // constant and variable ones, by name
};

std::vector<BenchProblem> problems();

}  // namespace niche::bench
