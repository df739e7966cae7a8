// Definitions that the tests of the CUDA families go through: each operator, several widths, each element
// type.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/definition.h"
#include "evolve/cuda_template_family.h"

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

// For each value of each parameter a valid point that has it, as near to the first seed as can be: so every
// branch of a text is compiled without compiling the space.
std::vector<evolve::Point> corners(const evolve::CudaTemplateFamily& family, const dispatch::Definition& d,
                                   const evolve::CudaTarget& t);
// At most `most` of them, spread.
std::vector<evolve::Point> thinned(const std::vector<evolve::Point>& all, size_t most);

}  // namespace niche::ops_cuda_test
