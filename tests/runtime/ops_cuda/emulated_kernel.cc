#include "tests/runtime/ops_cuda/emulated_kernel.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/ops/cuda/cuda_space_family.h"
#include "tests/runtime/ops_cuda/host_preamble.h"

namespace niche::ops_cuda_test {
namespace {

using dispatch::NicheCudaArgs;
using dispatch::Result;
using dispatch::Status;

constexpr int64_t kMultiprocessors = 3;  // few: persistent grids take several turns

// No contraction: fmaf is written where it is meant.
constexpr const char* kCompile = NICHE_TEST_COMPILER " -std=c++20 -O1 -w -ffp-contract=off -fPIC ";

// The host's preamble, compiled once a process: two thirds of what a kernel takes without it.
class Preamble {
 public:
  Preamble() {
    char dir[] = "/tmp/niche_emulated_XXXXXX";
    if (mkdtemp(dir) == nullptr) return;
    dir_ = dir;
    std::ofstream(header()) << "#pragma once\n" << host_preamble();
    const std::string command =
        std::string(kCompile) + "-x c++-header " + header() + " -o " + header() + ".gch";
    if (std::system(command.c_str()) != 0) std::filesystem::remove(header() + ".gch");  // slower, and right
  }
  ~Preamble() {
    std::error_code ignored;
    if (!dir_.empty()) std::filesystem::remove_all(dir_, ignored);
  }
  std::string header() const { return dir_ + "/preamble.h"; }

 private:
  std::string dir_;
};
const std::string& preamble_header() {
  static const Preamble preamble;
  static const std::string path = preamble.header();
  return path;
}

std::string host_text(std::string text) {
  text.replace(0, ops_cuda::cuda_preamble().size(), "#include \"" + preamble_header() + "\"\n");
  // Dynamic shared memory has no size in the text.
  for (const char* align : {"16", "128", "1024"}) {
    const std::string dynamic =
        "extern __shared__ __align__(" + std::string(align) + ") unsigned char shared[];";
    if (const size_t at = text.find(dynamic); at != std::string::npos)
      text.replace(at, dynamic.size(), "alignas(1024) static unsigned char shared[232448];");
  }
  return text;
}

std::string file_text(const std::string& path) {
  std::ifstream in(path);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

}  // namespace

Result<std::unique_ptr<EmulatedKernel>> EmulatedKernel::compile(evolve::CudaKernelSource source) {
  if (!source.text.starts_with(ops_cuda::cuda_preamble()))
    return dispatch::invalid(source.kernel_name + ": does not start with cuda_preamble()");
  char dir[] = "/tmp/niche_emulated_XXXXXX";
  if (mkdtemp(dir) == nullptr) return dispatch::errno_status("mkdtemp");
  const std::string base(dir);
  std::ofstream(base + "/k.cc") << host_text(source.text);
  const std::string command =
      std::string(kCompile) + "-shared " + base + "/k.cc -o " + base + "/k.so 2>" + base + "/log";
  const int rc = std::system(command.c_str());
  auto k = std::unique_ptr<EmulatedKernel>(new EmulatedKernel());
  if (rc == 0) k->handle_ = dlopen((base + "/k.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string log = file_text(base + "/log");
  std::error_code ignored;
  std::filesystem::remove_all(base, ignored);
  if (k->handle_ == nullptr) return dispatch::invalid(source.kernel_name + ": " + log.substr(0, 4000));
  k->source_ = std::move(source);
  return k;
}

EmulatedKernel::~EmulatedKernel() {
  if (handle_ != nullptr) dlclose(handle_);
}

Status EmulatedKernel::run(std::span<void* const> args, std::span<const int64_t> axes, void* workspace,
                           bool falling) {
  using Entry = void (*)(NicheCudaArgs);
  const auto launch = reinterpret_cast<int (*)(Entry, const NicheCudaArgs*, unsigned, unsigned, int)>(
      dlsym(handle_, "emulated_launch"));
  NicheCudaArgs a{};
  std::copy(args.begin(), args.end(), a.p);
  std::copy(axes.begin(), axes.end(), a.n);
  a.ws = workspace;
  const auto& phases = source_.plan.phases;
  for (size_t i = 0; i < phases.size(); ++i) {
    int64_t blocks = 1;
    for (const auto& f : phases[i].factors)
      blocks *= (axes[static_cast<size_t>(f.axis)] + f.divisor - 1) / f.divisor;
    if (phases[i].blocks_per_sm > 0) blocks = std::min(blocks, phases[i].blocks_per_sm * kMultiprocessors);
    a.blocks[i] = static_cast<unsigned>(std::max<int64_t>(1, blocks));
  }
  for (size_t i = 0; i < phases.size(); ++i) {
    auto entry = reinterpret_cast<Entry>(dlsym(handle_, phases[i].symbol.c_str()));
    if (entry == nullptr || launch == nullptr)
      return dispatch::not_found(source_.kernel_name + ": no entry " + phases[i].symbol);
    if (launch(entry, &a, a.blocks[i], static_cast<unsigned>(phases[i].threads), falling ? 1 : 0) != 0)
      return dispatch::internal(source_.kernel_name + ": threads of " + phases[i].symbol + " wait for ever");
  }
  return {};
}

}  // namespace niche::ops_cuda_test
