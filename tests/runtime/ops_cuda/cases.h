// Definitions that the tests of the CUDA families go through: each operator, several widths, each element
// type.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/definition.h"

namespace niche::ops_cuda_test {

struct Case {
  std::string op;
  std::vector<std::pair<std::string, int64_t>> consts;
  std::vector<std::string> dtypes;
  std::vector<std::pair<std::string, double>> attrs = {};
};
const std::vector<Case>& cases();

// Aborts the test program where schema and case disagree.
std::shared_ptr<const dispatch::Definition> definition(const Case& c, const std::string& dtype);

}  // namespace niche::ops_cuda_test
