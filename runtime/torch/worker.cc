#include "runtime/torch/worker.h"

#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/zeros.h>
#include <ATen/Parallel.h>
#include <torch/headeronly/version.h>

#include <string_view>

#include "evolve/search/template_space.h"
#include "evolve/session/session.h"
#include "evolve/worker/worker_main.h"
#include "runtime/host_environment.h"
#include "runtime/ops/builtin.h"
#include "runtime/ops/cpu/families.h"
#include "runtime/ops/user_ops.h"
#include "runtime/torch/executor.h"
#ifdef NICHE_WITH_CUDA
#include "runtime/torch/cuda_worker.h"
#endif

namespace niche {

bool is_worker(int argc, char** argv) {
  if (argc < 2) return false;
  const std::string_view role = argv[1];
#ifdef NICHE_WITH_CUDA
  if (role == "probe") return true;
#endif
  return role == "worker" || role == "niche-worker";
}

std::vector<std::string> torch_libraries() { return {"torch " TORCH_VERSION}; }

dispatch::Status register_everything(dispatch::OpRegistry* ops, evolve::FamilyRegistry* families) {
  NICHE_RETURN_IF_ERROR(ops::register_builtin_ops(*ops));
  ops_cpu::register_cpu_families(*families);
  return {};
}

std::function<bool(const dispatch::Definition&)> family_lookup() {
  auto families = std::make_shared<evolve::FamilyRegistry>();
  ops_cpu::register_cpu_families(*families);
  return [families](const dispatch::Definition& d) {
    return evolve::search::TemplateSpace(families->for_op(d.schema().op), d, evolve::detect_target(1))
               .family_count() > 0;
  };
}

dispatch::Executor torch_child_start(int threads) {
  at::set_num_threads(threads);
  // fbgemm reads /proc/cpuinfo at its first use; behind the walls it no longer could.
  const at::Tensor zero = at::zeros({1}, at::kLong);
  (void)at::embedding_bag(at::zeros({1, 8}), zero, zero);
  return torch_detail::aten_executor();
}

int worker_main(int argc, char** argv, ProposerStart proposer) {
#ifdef NICHE_WITH_CUDA
  if (std::string_view(argv[1]) == "probe") return cuda_probe_main(argc, argv);
#endif
  dispatch::OpRegistry ops;
  evolve::FamilyRegistry families;
  if (const dispatch::Status s = register_everything(&ops, &families); !s.ok()) {
    std::fprintf(stderr, "niche worker: %s\n", s.to_string().c_str());
    return 1;
  }
  evolve::WorkerHooks hooks;
  hooks.load_library = [](const evolve::SessionRequest& request, const std::string& path,
                          dispatch::OpRegistry& registry, evolve::FamilyRegistry&) {
    return ops::load_user_ops(path, registry, {true, request.python_program});
  };
  hooks.environment = [](const evolve::SessionRequest& request) {
    return host_environment(torch_libraries(), request.op_libraries, true);
  };
  hooks.make_evaluator = evolve::make_evaluator;
  hooks.child_start = torch_child_start;
  hooks.proposer = std::move(proposer);
#ifdef NICHE_WITH_CUDA
  hooks.device = cuda_session;
#endif
  return evolve::worker_main(argc, argv, ops, families, hooks);
}

}  // namespace niche
