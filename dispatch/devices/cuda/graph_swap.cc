#include "dispatch/devices/cuda/graph_swap.h"

#include <cstring>
#include <utility>
#include <vector>

namespace niche::dispatch {
namespace {

struct Swap {
  CUgraphNode node;
  NicheCudaArgs args;
  CUDA_KERNEL_NODE_PARAMS params;
};

bool alike(const BoundCudaPhase& a, const BoundCudaPhase& b) {
  return a.cluster == b.cluster && a.overlap == b.overlap;
}

}  // namespace

Result<int> swap_in_graph(CUgraph graph, CUgraphExec exec, const CudaKernel& from, const CudaKernel& to) {
  const CudaDriver& call = *from.driver;
  const std::string what = "swap of kernel " + from.name + " for " + to.name;
  if (from.definition->name() != to.definition->name() || from.device != to.device)
    return invalid(what + ": another Definition or device");
  // Clusters and dependent launches are attributes of a node, which an instantiated graph does not change.
  if (from.cuda_phase_count != 1 || to.cuda_phase_count != 1 ||
      !alike(from.cuda_phases[0], to.cuda_phases[0]) || to.pack_slot >= 0)
    return unsupported(what + ": one phase each, and equal clusters and dependent launches, are needed");
  size_t count = 0;
  NICHE_RETURN_IF_ERROR(call.check(call.cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes", what));
  std::vector<CUgraphNode> nodes(count);
  NICHE_RETURN_IF_ERROR(
      call.check(call.cuGraphGetNodes(graph, nodes.data(), &count), "cuGraphGetNodes", what));
  std::vector<Swap> swaps;
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    NICHE_RETURN_IF_ERROR(call.check(call.cuGraphNodeGetType(node, &type), "cuGraphNodeGetType", what));
    if (type != CU_GRAPH_NODE_TYPE_KERNEL) continue;
    Swap s{node, {}, {}};
    NICHE_RETURN_IF_ERROR(
        call.check(call.cuGraphKernelNodeGetParams(node, &s.params), "cuGraphKernelNodeGetParams", what));
    if (s.params.func != from.cuda_phases[0].function) continue;
    std::memcpy(&s.args, s.params.kernelParams[0], sizeof s.args);
    long axes[kMaxAxes];
    for (int i = 0; i < kMaxAxes; ++i) axes[i] = static_cast<long>(s.args.n[i]);
    int64_t extents[kMaxAxes];
    for (int i = 0; i < kMaxAxes; ++i) extents[i] = s.args.n[i];
    if (!to.guard.holds(*to.definition, extents))
      return unsupported(what + ": the kernel's Guard does not hold for a node's arguments");
    if (to.workspace_units > 0 && (s.args.ws == nullptr || to.workspace_units > from.workspace_units))
      return unsupported(what + ": a node has no workspace of " +
                         std::to_string(to.cuda_plan.workspace_bytes) + " bytes");
    const BoundCudaPhase& p = to.cuda_phases[0];
    s.args.blocks[0] = to.blocks(0, axes);
    if (s.args.blocks[0] == 0) return unsupported(what + ": no grid holds a node's problem");
    s.params.func = p.function;
    s.params.gridDimX = s.args.blocks[0];
    s.params.gridDimY = s.params.gridDimZ = s.params.blockDimY = s.params.blockDimZ = 1;
    s.params.blockDimX = p.threads;
    s.params.sharedMemBytes = p.shared_bytes;
    s.params.extra = nullptr;
    swaps.push_back(s);
  }
  const auto apply = [&](Swap& s) {
    void* parameters[] = {&s.args};
    s.params.kernelParams = parameters;
    return call.cuGraphExecKernelNodeSetParams(exec, s.node, &s.params);
  };
  for (size_t i = 0; i < swaps.size(); ++i) {
    const CUresult r = apply(swaps[i]);
    if (r == CUDA_SUCCESS) continue;
    // What was changed goes back to what the graph was instantiated with.
    for (size_t k = 0; k < i; ++k) {
      CUDA_KERNEL_NODE_PARAMS before{};
      if (call.cuGraphKernelNodeGetParams(swaps[k].node, &before) == CUDA_SUCCESS)
        call.cuGraphExecKernelNodeSetParams(exec, swaps[k].node, &before);
    }
    return call.check(r, "cuGraphExecKernelNodeSetParams", what);
  }
  return static_cast<int>(swaps.size());
}

}  // namespace niche::dispatch
