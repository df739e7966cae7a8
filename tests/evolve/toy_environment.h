// The environment key under which tests keep their kernels.
#pragma once

#include "kernels_cache/environment.h"

namespace niche::evolve::testing_ops {

inline kernels_cache::Environment toy_environment() {
  kernels_cache::Environment e;
  e.device_class = "cpu";
  e.device_model = "a test's machine";
  e.compiler = "the system's";
  return e;
}

}  // namespace niche::evolve::testing_ops
