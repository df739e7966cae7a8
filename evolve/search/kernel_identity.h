// Which candidates are one kernel. Two points of a family may generate the same text and differ only in how they
// would divide work, or in what they would refuse, at sizes that nobody asked for: at the problems that a
// session serves they are one kernel, measured once.
//
// Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dispatch/definition.h"
#include "evolve/template_family.h"

namespace niche::evolve {

// A problem's extents, one an axis of the schema.
using ProblemAxes = std::array<int64_t, dispatch::kMaxAxes>;

// Comments dropped, runs of spacing made one blank (none beside punctuation). For comparison, not for
// compilers.
std::string normalise_source(std::string_view text);

// Equal texts: the same kernel at all of `problems`. It holds the normalised source, flags, and for each problem
// the number of tasks of every phase, whether they are split over threads, and whether the source's limits hold there. Without
// problems: launch plan, limits and workspace as they stand, which is what programs that nobody generated are compared by;
// of points of a family the workspace follows from the rest. `var_axes`: Definition::var_axes(). Some 0.4 ms for 30 kB.
std::string kernel_identity(const KernelSource& source, std::span<const int> var_axes,
                            std::span<const ProblemAxes> problems);
// What kernel_identity() puts behind the normalised source.
std::string launch_identity(const KernelSource& source, std::span<const int> var_axes,
                            std::span<const ProblemAxes> problems);

// The same of points of one family as a number, and spacing counts: a family writes equal text for equal kernels. Some 20 us.
uint64_t kernel_number(const KernelSource& source, std::span<const int> var_axes,
                       std::span<const ProblemAxes> problems);

}  // namespace niche::evolve
