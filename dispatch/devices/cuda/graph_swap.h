// swap_in_graph: another kernel in the place of one that an instantiated graph replays, without another
// capture: same Definition, same arguments, same workspace; another function, grid, block and shared memory.
//
// Between replays, on the thread that owns the graph (captured_graph.h says when a kernel of it is stale).
// Nodes are found by their functions: each kernel of niche's is one function a phase. The swap holds for
// replays that begin after it; the same call with the two kernels exchanged takes it back.
// Cost: some µs a kernel node to find them; a swap 0.6 µs, and the next launch of the graph 4 µs.
#pragma once

#include "dispatch/devices/cuda/cuda_kernel.h"

namespace niche::dispatch {

// Returns how many nodes were swapped; 0: the graph does not launch `from`. `graph` is what `exec` was
// instantiated from: it tells the arguments. Requires: both kernels stay loaded (modules of niche's do).
// kUnsupported: the kernels have different phases, clusters or dependent launches, or `to` does not hold for
// the arguments of a node (named) or wants a workspace that the node has not. The driver's errors as
// CudaDriver::check. Nothing was changed where an error is returned.
Result<int> swap_in_graph(CUgraph graph, CUgraphExec exec, const CudaKernel& from, const CudaKernel& to);

}  // namespace niche::dispatch
