#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "dispatch/devices/cuda/cuda_capture.h"
#include "dispatch/devices/cuda/cuda_event_pool.h"
#include "dispatch/devices/cuda/cuda_kernel.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "kernels_cache/sha256.h"
#include "runtime/cuda/cuda.h"
#include "runtime/host_environment.h"

namespace niche {
namespace {

using dispatch::CudaDevice;
using dispatch::CudaDriver;
using dispatch::Result;
using dispatch::Status;

constexpr int kTimedCalls = 256;
constexpr size_t kStreamsMax = 8;  // that may hold a workspace, a device
constexpr int64_t kWorkspaceBytesMax = int64_t{64} << 20;

dispatch::CudaInfo named(const std::vector<dispatch::CudaInfo>& found, int ordinal) {
  return found[static_cast<size_t>(ordinal)];
}

// Blocks of device memory, one a stream that asks, made before kernels that need them are published. A block
// is its stream's for ever: calls of one stream run in order.
class Workspaces {
 public:
  ~Workspaces() {
    for (Block& b : blocks_)
      if (b.memory != 0) driver_->cuMemFree(b.memory);
  }
  // All blocks have at least `bytes` afterwards; those that a stream holds already are not touched, so what
  // is asked for first must be the largest, or the stream serves such kernels by the library.
  Status reserve(const CudaDevice& device, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    driver_ = &device.driver();
    if (bytes > kWorkspaceBytesMax)
      return dispatch::busy("a workspace of " + std::to_string(bytes) + " bytes; " +
                            std::to_string(kWorkspaceBytesMax) + " are possible");
    const CudaDevice::Scope scope(device);
    if (!scope.status().ok()) return scope.status();
    for (Block& b : blocks_) {
      if (b.memory != 0) continue;
      NICHE_RETURN_IF_ERROR(
          driver_->check(driver_->cuMemAlloc(&b.memory, static_cast<size_t>(kWorkspaceBytesMax)),
                         "cuMemAlloc", "workspace"));
      b.bytes.store(kWorkspaceBytesMax, std::memory_order_release);  // pairs with the acquire in lend()
      break;  // one more block a kernel that needs any, until each stream can have one
    }
    return {};
  }
  void* lend(void* stream, int64_t bytes) {
    // The null stream is a stream like any other: its key must not be that of a free block.
    const auto key = reinterpret_cast<uintptr_t>(stream) + 1;
    for (Block& b : blocks_) {
      if (b.bytes.load(std::memory_order_acquire) < bytes) return nullptr;  // acquire: pairs with reserve()
      uintptr_t owner = b.owner.load(std::memory_order_relaxed);
      if (owner == 0 && b.owner.compare_exchange_strong(owner, key, std::memory_order_relaxed)) owner = key;
      if (owner == key) return reinterpret_cast<void*>(static_cast<uintptr_t>(b.memory));
    }
    return nullptr;
  }

 private:
  struct Block {
    CUdeviceptr memory = 0;
    std::atomic<int64_t> bytes{0};
    std::atomic<uintptr_t> owner{0};
  };
  std::mutex mutex_;
  const CudaDriver* driver_ = nullptr;
  std::array<Block, kStreamsMax> blocks_;
};

struct Device {
  std::shared_ptr<const CudaDevice> device;
  std::unique_ptr<dispatch::CudaEventPool> events;
  std::array<std::atomic<bool>, kTimedCalls> tag_used{};
  std::atomic<uint32_t> next_tag{0};
  std::array<int, kTimedCalls> slot_of{};  // by tag, between begin and end
  Workspaces workspaces;
};

class CudaPlane final : public DevicePlane {
 public:
  static Result<std::shared_ptr<CudaPlane>> open(std::shared_ptr<const CudaDriver> driver, double tuning_duty,
                                                 double tuning_duty_max) {
    auto found = dispatch::CudaInfo::discover(*driver);
    if (!found.ok()) return found.status();
    if (found->empty()) return dispatch::unsupported("no CUDA device");
    auto plane = std::make_shared<CudaPlane>();
    plane->driver_ = driver;
    plane->limits_.duty = tuning_duty;
    plane->limits_.duty_max = tuning_duty_max;
    for (const dispatch::CudaInfo& info : *found) {
      auto d = std::make_unique<Device>();
      auto device = CudaDevice::open(driver, info);
      if (!device.ok()) return device.status();
      d->device = *device;
      auto events = dispatch::CudaEventPool::make(d->device, kTimedCalls);
      if (!events.ok()) return events.status();
      d->events = std::move(*events);
      plane->devices_.push_back(std::move(d));
    }
    return plane;
  }

  int count() const override { return static_cast<int>(devices_.size()); }

  Result<kernels_cache::Environment> environment(int ordinal, const std::vector<std::string>& libraries,
                                                 const std::vector<std::string>& op_libraries,
                                                 bool with_compiler) const override {
    std::string compiler;
    if (with_compiler) {
      auto toolchain = evolve::CudaToolchain::find({});
      if (!toolchain.ok()) return toolchain.status();
      compiler = (*toolchain)->version();
    }
    return cuda_environment(*driver_, ordinal, libraries, op_libraries, compiler);
  }

  Result<std::shared_ptr<const dispatch::Kernel>> load(int ordinal,
                                                       std::shared_ptr<const dispatch::Definition> definition,
                                                       const kernels_cache::KernelRecord& record) override {
    if (ordinal < 0 || ordinal >= count())
      return dispatch::invalid("no CUDA device " + std::to_string(ordinal));
    Device& d = *devices_[static_cast<size_t>(ordinal)];
    if (kernels_cache::to_hex(kernels_cache::sha256(record.artefact)) != record.artefact_sha256)
      return dispatch::corrupt("kernel '" + record.name + "': its artefact is not what its record names");
    if (record.cuda_plan.workspace_bytes > 0)
      NICHE_RETURN_IF_ERROR(d.workspaces.reserve(*d.device, record.cuda_plan.workspace_bytes));
    auto module = dispatch::CudaModule::load(d.device, record.artefact, record.name);
    if (!module.ok()) return module.status();
    dispatch::CudaKernelSpec spec;
    spec.name = record.name;
    spec.definition = std::move(definition);
    spec.guard = record.guard;
    spec.plan = record.cuda_plan;
    spec.properties = record.properties;
    spec.provenance = record.provenance;
    auto kernel = dispatch::load_cuda_kernel(std::move(spec), *module);
    if (!kernel.ok()) return kernel.status();
    return std::shared_ptr<const dispatch::Kernel>(*kernel);
  }

  void* workspace(int ordinal, void* stream, int64_t bytes) override {
    return devices_[static_cast<size_t>(ordinal)]->workspaces.lend(stream, bytes);
  }

  int64_t begin_time(int ordinal, void* stream) override {
    Device& d = *devices_[static_cast<size_t>(ordinal)];
    const auto s = static_cast<CUstream>(stream);
    if (dispatch::counts_as_captured(dispatch::capture_state(*driver_, s))) return -1;
    const uint32_t tag = d.next_tag.fetch_add(1, std::memory_order_relaxed) % kTimedCalls;
    bool expected = false;
    // acquire: pairs with the release that freed the tag, so that its record may be overwritten.
    if (!d.tag_used[tag].compare_exchange_strong(expected, true, std::memory_order_acquire)) return -1;
    d.slot_of[tag] = d.events->begin(s, tag);
    if (d.slot_of[tag] != dispatch::CudaEventPool::kNoSlot) return tag;
    d.tag_used[tag].store(false, std::memory_order_release);
    return -1;
  }
  void end_time(int ordinal, int64_t tag, void* stream) override {
    Device& d = *devices_[static_cast<size_t>(ordinal)];
    d.events->end(d.slot_of[static_cast<size_t>(tag)], static_cast<CUstream>(stream));
  }
  void harvest(int ordinal, const std::function<void(int64_t, double)>& sample) override {
    Device& d = *devices_[static_cast<size_t>(ordinal)];
    const CudaDevice::Scope scope(*d.device);
    if (!scope.status().ok()) return;
    d.events->harvest([&](uint64_t tag, double us) {
      sample(static_cast<int64_t>(tag), us * 1e3);
      d.tag_used[tag].store(false, std::memory_order_release);
    });
  }
  int64_t tags() const override { return kTimedCalls; }
  std::unique_ptr<evolve::PermitSource> make_permits(
      const dispatch::Clock& clock, std::function<evolve::Traffic()> traffic) const override {
    return std::make_unique<evolve::PermitGate>(limits_, clock, std::move(traffic));
  }
  Status health(int ordinal) const override {
    return devices_[static_cast<size_t>(ordinal)]->device->health();
  }

 private:
  std::shared_ptr<const CudaDriver> driver_;
  evolve::PermitLimits limits_;
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace

Status enable_cuda(RuntimeConfig* config, std::shared_ptr<const CudaDriver> driver, double tuning_duty,
                   double tuning_duty_max) {
  if (driver == nullptr) {
    auto loaded = CudaDriver::load();
    if (!loaded.ok()) return loaded.status();
    driver = *loaded;
  }
  auto plane = CudaPlane::open(std::move(driver), tuning_duty, tuning_duty_max);
  if (!plane.ok()) return plane.status();
  config->cuda_devices = (*plane)->count();
  config->devices = *plane;
  if (!config->device_workspace)
    config->device_workspace = [raw = plane->get()](int device, void* stream, int64_t bytes) {
      return raw->workspace(device, stream, bytes);
    };
  return {};
}

Result<kernels_cache::Environment> cuda_environment(const CudaDriver& driver, int ordinal,
                                                    const std::vector<std::string>& libraries,
                                                    const std::vector<std::string>& op_libraries,
                                                    const std::string& compiler) {
  auto info = cuda_info(driver, ordinal);
  if (!info.ok()) return info.status();
  auto e = host_environment(libraries, op_libraries, false);
  if (!e.ok()) return e.status();
  e->device_class = "cuda." + info->arch();
  e->device_model = info->device_class();
  e->isa_flags.clear();
  e->driver = info->driver();
  e->kernel_abi = dispatch::kCudaKernelAbiVersion;
  e->compiler = compiler;
  return e;
}

Result<dispatch::CudaInfo> cuda_info(const CudaDriver& driver, int ordinal) {
  auto found = dispatch::CudaInfo::discover(driver);
  if (!found.ok()) return found.status();
  if (ordinal < 0 || ordinal >= static_cast<int>(found->size()))
    return dispatch::not_found("no CUDA device " + std::to_string(ordinal) + ", " +
                               std::to_string(found->size()) + " are there");
  return named(*found, ordinal);
}

Result<evolve::CudaTarget> cuda_target(const CudaDriver& driver, int ordinal) {
  auto info = cuda_info(driver, ordinal);
  if (!info.ok()) return info.status();
  evolve::CudaTarget t;
  t.arch = info->arch();
  t.capability = info->major * 10 + info->minor;
  t.sm_count = info->sm_count;
  t.shared_bytes_per_block = info->shared_bytes_per_block;
  t.shared_bytes_per_sm = info->shared_bytes_per_sm;
  t.threads_per_sm = info->threads_per_sm;
  t.l2_bytes = info->l2_bytes;
  return t;
}

}  // namespace niche
