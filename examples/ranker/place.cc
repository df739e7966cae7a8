#include "examples/ranker/place.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <charconv>

#ifdef NICHE_WITH_CUDA
#include "dispatch/devices/cuda/cuda_info.h"
#include "runtime/cuda/cuda.h"
#include "runtime/torch/cuda_forms.h"
#endif

namespace ranker {
namespace {

// N of "cuda:N".
std::optional<int> ordinal_of(const std::string& name) {
  constexpr std::string_view kPrefix = "cuda:";
  if (name.rfind(kPrefix, 0) != 0) return {};
  int n = -1;
  const char *begin = name.data() + kPrefix.size(), *end = name.data() + name.size();
  const auto [at, error] = std::from_chars(begin, end, n);
  if (error != std::errc() || at != end || n < 0 || n > 127) return {};
  return n;
}

#ifdef NICHE_WITH_CUDA
struct Found {
  std::shared_ptr<const niche::dispatch::CudaDriver> driver;
  niche::dispatch::CudaInfo info;
};
niche::dispatch::Result<Found> find(const std::string& name, int ordinal) {
  auto driver = niche::dispatch::CudaDriver::load();
  if (!driver.ok()) return driver.status();
  auto all = niche::dispatch::CudaInfo::discover(**driver);
  if (!all.ok()) return all.status();
  if (ordinal >= static_cast<int>(all->size()))
    return niche::dispatch::unsupported("device '" + name + "': this machine has " +
                                        std::to_string(all->size()) + " CUDA devices");
  return Found{*driver, (*all)[static_cast<size_t>(ordinal)]};
}
#else
niche::dispatch::Status no_cuda(const std::string& name) {
  return niche::dispatch::unsupported("device '" + name + "': this build has no CUDA (./dev build cuda)");
}
#endif

// -1: the host.
niche::dispatch::Result<int> parse(const std::string& name) {
  if (name == "cpu") return -1;
  if (const auto ordinal = ordinal_of(name)) return *ordinal;
  return niche::dispatch::invalid("device '" + name + "': it must be cpu or cuda:N");
}

}  // namespace

niche::dispatch::Result<Place> Place::open(const std::string& name, double tuning_duty,
                                           niche::RuntimeConfig* config) {
  const auto ordinal = parse(name);
  if (!ordinal.ok()) return ordinal.status();
  if (*ordinal < 0) return Place(at::kCPU);
#ifdef NICHE_WITH_CUDA
  NICHE_RETURN_IF_ERROR(niche::open_torch_cuda());
  const auto found = find(name, *ordinal);
  if (!found.ok()) return found.status();
  NICHE_RETURN_IF_ERROR(niche::enable_cuda(config, found->driver, tuning_duty));
  at::globalContext().setAllowTF32CuDNN(false);
  return Place(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(*ordinal)));
#else
  (void)tuning_duty, (void)config;
  return no_cuda(name);
#endif
}

niche::dispatch::Result<std::string> Place::describe(const std::string& name) {
  const auto ordinal = parse(name);
  if (!ordinal.ok()) return ordinal.status();
  if (*ordinal < 0) return std::string();
#ifdef NICHE_WITH_CUDA
  const auto found = find(name, *ordinal);
  if (!found.ok()) return found.status();
  return found->info.name + ", " + found->info.driver();
#else
  return no_cuda(name);
#endif
}

void Place::wait() const {
  if (!on_host()) c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
}

RequestStream::RequestStream(const Place& place) {
  if (place.on_host()) return;
  thread_local std::optional<c10::Stream> mine;
  if (!mine || mine->device() != place.device())
    mine = c10::impl::VirtualGuardImpl(place.device().type()).getStreamFromGlobalPool(place.device());
  guard_.emplace(*mine);
}

}  // namespace ranker
