// Candidates of the template families, compiled and loaded for a benchmark: no judge, no guard pages.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dispatch/devices/cpu/cpu_module.h"
#include "evolve/template_family.h"
#include "evolve/toolchain/cpp_toolchain.h"

namespace niche::bench {

class LoadedKernel {
 public:
  static dispatch::Result<LoadedKernel> load(evolve::KernelSource source, std::string name,
                                             std::shared_ptr<const dispatch::CpuModule> module);
  // Packs the constants among `args`, as bind_constant does; required before run().
  void bind(const dispatch::Definition& d, const NicheKernelArgs& args);
  const std::string& name() const { return name_; }
  const dispatch::Guard& limits() const { return source_.limits; }
  // On the caller's thread, all tasks of each phase in one range.
  void run(NicheKernelArgs args);

 private:
  struct Aligned {
    void operator()(void* p) const { std::free(p); }
  };
  using Buffer = std::unique_ptr<void, Aligned>;
  static Buffer allocate(int64_t bytes);

  evolve::KernelSource source_;
  std::string name_;
  std::shared_ptr<const dispatch::CpuModule> module_;
  std::vector<NicheKernelFn> entries_;
  NichePackFn pack_ = nullptr;
  Buffer packed_, workspace_;
};

// The seeds of every family of the operator and `random` further valid points a family, one compile each.
dispatch::Result<std::vector<LoadedKernel>> load_kernels(const evolve::FamilyRegistry& families,
                                                         const evolve::CppToolchain& toolchain,
                                                         const evolve::CpuTarget& target,
                                                         const dispatch::Definition& d, int random);

}  // namespace niche::bench
