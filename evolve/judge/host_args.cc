#include "evolve/judge/host_args.h"

#include <algorithm>

#include "dispatch/base/hash.h"

namespace niche::evolve::judge {

using dispatch::ArgRole;
using dispatch::Problem;

HostArgs::HostArgs(const Problem& problem, void* const* p) {
  const int n = static_cast<int>(problem.definition->schema().args.size());
  for (int i = 0; i < n; ++i) add(problem, i, problem.definition->arg_dtype(i), p[i]);
}

HostArgs HostArgs::outputs(const Problem& problem, void* const* p) {
  HostArgs h;
  const auto& args = problem.definition->schema().args;
  for (int i = 0; i < static_cast<int>(args.size()); ++i)
    if (args[static_cast<size_t>(i)].role != ArgRole::kIn && problem.definition->has_arg(i))
      h.add(problem, i, reference_dtype(problem, i), p[i]);
  return h;
}

void HostArgs::add(const Problem& problem, int arg, DLDataType type, void* data) {
  shapes_.push_back(std::make_unique<std::vector<int64_t>>(problem.arg_shape(arg)));
  DLTensor t{};
  t.data = data;
  t.device = {kDLCPU, 0};
  t.ndim = static_cast<int32_t>(shapes_.back()->size());
  t.dtype = type;
  t.shape = shapes_.back()->data();
  tensors_.push_back(t);
}

DLDataType reference_dtype(const Problem& problem, int arg) {
  const DLDataType t = problem.definition->arg_dtype(arg);
  return dispatch::is_float(t) ? dispatch::kF64 : t;
}

int64_t reference_bytes(const Problem& problem, int arg) {
  return problem.arg_elements(arg) *
         static_cast<int64_t>(dispatch::dtype_bytes(reference_dtype(problem, arg)));
}

dispatch::Result<Problem> make_problem(const dispatch::OpSpec& op,
                                       std::shared_ptr<const dispatch::Definition> definition,
                                       std::span<const int64_t> var_axes) {
  Problem p;
  const auto consts = definition->const_extents();
  std::copy(consts.begin(), consts.end(), p.axes.begin());
  const auto vars = definition->var_axes();
  if (vars.size() != var_axes.size())
    return dispatch::invalid(definition->name() + ": " + std::to_string(var_axes.size()) + " axes given, " +
                             std::to_string(vars.size()) + " are variable");
  for (size_t i = 0; i < vars.size(); ++i) p.axes[static_cast<size_t>(vars[i])] = var_axes[i];
  p.definition = std::move(definition);
  NICHE_RETURN_IF_ERROR(
      op.derive_axes(*p.definition, std::span(p.axes.data(), p.definition->schema().axes.size())));
  return p;
}

KernelArgs::KernelArgs(const dispatch::Definition& definition, const int64_t* axes) {
  const size_t count = definition.schema().axes.size();
  std::copy(axes, axes + count, n.begin());
  std::copy(definition.attrs().begin(), definition.attrs().end(), a.begin());
  args.p = p.data();
  args.n = n.data();
  args.a = a.data();
}

uint64_t KernelArgs::fingerprint() const {
  return dispatch::hash_bytes({reinterpret_cast<const char*>(this), sizeof *this});
}

}  // namespace niche::evolve::judge
