#include "bench/ops_cpu/kernels.h"

#include <algorithm>
#include <cstdlib>
#include <random>

namespace niche::bench {
namespace {

using namespace dispatch;

std::vector<evolve::Point> points(const evolve::TemplateFamily& f, const Definition& d,
                                  const evolve::CpuTarget& t, int random) {
  std::vector<evolve::Point> all = f.seeds(d, t);
  std::mt19937 rng(1);
  for (int tries = 0; random > 0 && tries < 100000; ++tries) {
    evolve::Point p;
    for (const evolve::Param& q : f.params()) p.push_back(static_cast<int>(rng() % q.values.size()));
    if (!f.valid(d, t, p) || std::find(all.begin(), all.end(), p) != all.end()) continue;
    all.push_back(p);
    --random;
  }
  return all;
}

}  // namespace

LoadedKernel::Buffer LoadedKernel::allocate(int64_t bytes) {
  return Buffer(bytes > 0 ? std::aligned_alloc(64, (static_cast<size_t>(bytes) + 63) / 64 * 64) : nullptr);
}

Result<LoadedKernel> LoadedKernel::load(evolve::KernelSource source, std::string name,
                                        std::shared_ptr<const CpuModule> module) {
  LoadedKernel k;
  k.source_ = std::move(source);
  k.name_ = std::move(name);
  k.module_ = std::move(module);
  for (const Phase& phase : k.source_.plan.phases) {
    auto symbol = k.module_->symbol(phase.symbol);
    if (!symbol.ok()) return symbol.status();
    k.entries_.push_back(reinterpret_cast<NicheKernelFn>(*symbol));
  }
  k.workspace_ = allocate(k.source_.plan.workspace_bytes);
  if (k.source_.plan.pack_symbol.empty()) return k;
  auto pack = k.module_->symbol(k.source_.plan.pack_symbol);
  if (!pack.ok()) return pack.status();
  k.pack_ = reinterpret_cast<NichePackFn>(*pack);
  k.packed_ = allocate(k.source_.plan.packed_bytes);
  return k;
}

void LoadedKernel::bind(const Definition& d, const NicheKernelArgs& args) {
  if (pack_ == nullptr) return;
  std::vector<void*> constants;
  for (size_t i = 0; i < d.schema().args.size(); ++i)
    constants.push_back(d.schema().args[i].constant ? args.p[i] : nullptr);
  NicheKernelArgs a = args;
  a.p = constants.data();
  pack_(&a, packed_.get());
}

void LoadedKernel::run(NicheKernelArgs args) {
  args.packed = packed_.get();
  args.ws = workspace_.get();
  for (size_t i = 0; i < entries_.size(); ++i)
    entries_[i](&args, 0, source_.plan.phases[i].tasks(reinterpret_cast<const int64_t*>(args.n)));
}

Result<std::vector<LoadedKernel>> load_kernels(const evolve::FamilyRegistry& families,
                                               const evolve::CppToolchain& toolchain,
                                               const evolve::CpuTarget& target, const Definition& d,
                                               int random) {
  std::vector<LoadedKernel> kernels;
  const size_t preamble = evolve::cpu_preamble().size();
  for (const evolve::TemplateFamily* f : families.for_op(d.schema().op))
    for (const evolve::Point& p : points(*f, d, target, random)) {
      evolve::KernelSource s = f->render(d, target, p, "_b");
      evolve::SourceUnit unit{s.kernel_name, std::string_view(s.text).substr(preamble), {}};
      for (const Phase& phase : s.plan.phases) unit.exports.push_back(phase.symbol);
      if (!s.plan.pack_symbol.empty()) unit.exports.push_back(s.plan.pack_symbol);
      auto object = toolchain.compile(std::span(&unit, 1), s.flags, evolve::cpu_preamble());
      if (!object.ok()) return object.status();
      auto module = CpuModule::load_bytes(object->bytes, s.kernel_name);
      if (!module.ok()) return module.status();
      auto kernel = LoadedKernel::load(std::move(s), f->name() + " " + f->describe(p), *module);
      if (!kernel.ok()) return kernel.status();
      kernels.push_back(std::move(*kernel));
    }
  return kernels;
}

}  // namespace niche::bench
