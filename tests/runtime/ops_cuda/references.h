// What the operators compute, in double precision and in the plainest way: for kernels that are run on the
// host. Also inputs that each operator can take.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "dispatch/definition.h"

namespace niche::ops_cuda_test {

// Element i of argument `arg`, as a double.
using Input = std::function<double(int arg, int64_t i)>;

// One value an element of output `arg`.
std::vector<double> reference(const dispatch::Problem& p, int arg, const Input& in);
// Values of an integer input: indices that the operator may be given.
std::vector<int64_t> integers(const dispatch::Problem& p, int arg, std::mt19937_64& random);

}  // namespace niche::ops_cuda_test
