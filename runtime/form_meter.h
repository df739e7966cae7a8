// best_form: which library form of an operator is the fastest on a problem, measured in this process.
//
// The bar that a kernel has to beat and the fallback that serves. Forms are timed in turn, over fresh
// buffers, and compared by their shortest time: in a server that is busy, everything above the shortest is
// somebody else's doing.
//
// Thread-safety: safe; runs the library in the calling thread. Cost: bounded by `seconds_max` beyond one run
// of each form.
#pragma once

#include <vector>

#include "dispatch/op_spec.h"

namespace niche {

struct FormTimes {
  int best = 0;            // a form other than 0 has to be 3 % faster to win
  std::vector<double> ns;  // shortest time by form; 0: does not apply
};

// kUnsupported: the operator cannot make inputs here, or its library threw (its message).
dispatch::Result<FormTimes> best_form(const dispatch::OpSpec& op, const dispatch::Problem& problem,
                                      double seconds_max);

}  // namespace niche
