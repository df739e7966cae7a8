#include "dispatch/devices/cuda/cuda_module.h"

namespace niche::dispatch {
namespace {

std::atomic<int64_t> modules_resident{0};

// cuModuleLoadData takes no length: it reads as far as the ELF's headers say. What it would read must be
// there.
bool elf_fits(std::span<const uint8_t> b) {
  if (b.size() < 64 || b[0] != 0x7f || b[1] != 'E' || b[2] != 'L' || b[3] != 'F' || b[4] != 2) return false;
  const auto word = [&](size_t at, size_t bytes) {
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; ++i) v |= static_cast<uint64_t>(b[at + i]) << (8 * i);
    return v;
  };
  const auto inside = [&](uint64_t offset, uint64_t bytes) {
    return offset <= b.size() && bytes <= b.size() - offset;
  };
  const uint64_t sections = word(40, 8), section_bytes = word(58, 2), section_count = word(60, 2);
  const uint64_t segments = word(32, 8), segment_bytes = word(54, 2), segment_count = word(56, 2);
  if (!inside(sections, section_bytes * section_count) || section_bytes < 64) return false;
  if (segment_count > 0 && !inside(segments, segment_bytes * segment_count)) return false;
  for (uint64_t i = 0; i < section_count; ++i) {
    const auto at = static_cast<size_t>(sections + i * section_bytes);
    constexpr uint64_t kNoBits = 8;  // SHT_NOBITS occupies nothing in the file
    if (word(at + 4, 4) != kNoBits && !inside(word(at + 24, 8), word(at + 32, 8))) return false;
  }
  return true;
}

}  // namespace

Result<std::shared_ptr<const CudaModule>> CudaModule::load(std::shared_ptr<const CudaDevice> device,
                                                           std::span<const uint8_t> cubin,
                                                           const std::string& name) {
  if (!elf_fits(cubin))
    return corrupt("module " + name + ": " + std::to_string(cubin.size()) +
                   " bytes that are not a whole cubin");
  auto m = std::shared_ptr<CudaModule>(new CudaModule(std::move(device), name));
  const CudaDriver& call = m->device_->driver();
  const CudaDevice::Scope scope(*m->device_);
  if (!scope.status().ok()) return scope.status();
  NICHE_RETURN_IF_ERROR(
      call.check(call.cuModuleLoadData(&m->module_, cubin.data()), "cuModuleLoadData", "module " + name));
  modules_resident.fetch_add(1, std::memory_order_relaxed);
  return std::shared_ptr<const CudaModule>(std::move(m));
}

CudaModule::~CudaModule() {
  if (module_ == nullptr || launched_.load(std::memory_order_relaxed)) return;
  const CudaDevice::Scope scope(*device_);
  if (scope.status().ok() && device_->driver().cuModuleUnload(module_) == CUDA_SUCCESS)
    modules_resident.fetch_sub(1, std::memory_order_relaxed);
}

Result<CudaFunction> CudaModule::function(const std::string& symbol, int threads, int dynamic_shared_bytes,
                                          int cluster) const {
  const CudaDriver& call = device_->driver();
  const std::string what = "kernel '" + symbol + "' of module " + name_;
  const CudaDevice::Scope scope(*device_);
  if (!scope.status().ok()) return scope.status();
  CudaFunction f;
  f.symbol = symbol;
  NICHE_RETURN_IF_ERROR(
      call.check(call.cuModuleGetFunction(&f.handle, module_, symbol.c_str()), "cuModuleGetFunction", what));
  const std::pair<CUfunction_attribute, int*> reads[] = {
      {CU_FUNC_ATTRIBUTE_NUM_REGS, &f.registers},
      {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &f.local_bytes},
      {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &f.static_shared_bytes},
      {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &f.threads_max}};
  for (const auto& [attribute, value] : reads)
    NICHE_RETURN_IF_ERROR(
        call.check(call.cuFuncGetAttribute(value, attribute, f.handle), "cuFuncGetAttribute", what));
  if (threads < 1 || threads > f.threads_max)
    return unsupported(what + ": " + std::to_string(threads) + " threads a block, " +
                       std::to_string(f.threads_max) + " are possible with its registers");
  const int limit = device_->info().shared_bytes_per_block;
  if (dynamic_shared_bytes < 0 || dynamic_shared_bytes + f.static_shared_bytes > limit)
    return unsupported(what + ": " + std::to_string(dynamic_shared_bytes) + " + " +
                       std::to_string(f.static_shared_bytes) + " bytes of shared memory, the device has " +
                       std::to_string(limit) + " a block");
  if (dynamic_shared_bytes > 0)
    NICHE_RETURN_IF_ERROR(
        call.check(call.cuFuncSetAttribute(f.handle, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                           dynamic_shared_bytes),
                   "cuFuncSetAttribute",
                   what + ": " + std::to_string(dynamic_shared_bytes) + " bytes of shared memory"));
  if (cluster > 8)
    NICHE_RETURN_IF_ERROR(
        call.check(call.cuFuncSetAttribute(f.handle, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
                   "cuFuncSetAttribute", what + ": a cluster of " + std::to_string(cluster)));
  return f;
}

int64_t CudaModule::resident_modules() { return modules_resident.load(std::memory_order_relaxed); }

}  // namespace niche::dispatch
