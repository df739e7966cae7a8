#include "dispatch/devices/cuda/cuda_info.h"

#include <array>
#include <cstdio>

namespace niche::dispatch {
namespace {

struct Attribute {
  CUdevice_attribute id;
  int CudaInfo::*field;
  const char* name;
};
constexpr std::array kAttributes = {
    Attribute{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &CudaInfo::major, "compute capability"},
    Attribute{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &CudaInfo::minor, "compute capability"},
    Attribute{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &CudaInfo::sm_count, "multiprocessor count"},
    Attribute{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, &CudaInfo::sm_clock_khz, "clock rate"},
    Attribute{CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, &CudaInfo::memory_clock_khz, "memory clock"},
    Attribute{CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, &CudaInfo::memory_bus_bits, "memory bus width"},
    Attribute{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &CudaInfo::threads_per_sm,
              "threads per multiprocessor"},
    Attribute{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, &CudaInfo::registers_per_sm,
              "registers per multiprocessor"},
    Attribute{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &CudaInfo::shared_bytes_per_block,
              "shared memory per block"},
    Attribute{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &CudaInfo::shared_bytes_per_sm,
              "shared memory per multiprocessor"},
};

Result<CudaInfo> read_device(const CudaDriver& driver, int ordinal, int version) {
  const std::string what = "device " + std::to_string(ordinal);
  CudaInfo info;
  info.ordinal = ordinal;
  info.driver_version = version;
  CUdevice device = 0;
  NICHE_RETURN_IF_ERROR(driver.check(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet", what));
  std::array<char, 256> name{};
  NICHE_RETURN_IF_ERROR(
      driver.check(driver.cuDeviceGetName(name.data(), name.size() - 1, device), "cuDeviceGetName", what));
  info.name = name.data();
  CUuuid uuid{};
  NICHE_RETURN_IF_ERROR(driver.check(driver.cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid", what));
  for (char byte : uuid.bytes) {
    std::array<char, 3> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    info.uuid += hex.data();
  }
  for (const Attribute& a : kAttributes)
    NICHE_RETURN_IF_ERROR(driver.check(driver.cuDeviceGetAttribute(&(info.*a.field), a.id, device),
                                       "cuDeviceGetAttribute", what + ": " + a.name));
  int l2 = 0;
  NICHE_RETURN_IF_ERROR(
      driver.check(driver.cuDeviceGetAttribute(&l2, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device),
                   "cuDeviceGetAttribute", what + ": L2 size"));
  info.l2_bytes = l2;
  size_t memory = 0;
  NICHE_RETURN_IF_ERROR(driver.check(driver.cuDeviceTotalMem(&memory, device), "cuDeviceTotalMem", what));
  info.memory_bytes = static_cast<int64_t>(memory);
  return info;
}

}  // namespace

std::string CudaInfo::arch() const {
  const std::string number = std::to_string(major) + std::to_string(minor);
  // From Hopper on, the instructions that matter (wgmma, tcgen05) exist in the exact target alone.
  return "sm_" + number + (major >= 9 ? "a" : "");
}

std::string CudaInfo::device_class() const {
  return name + " sm_" + std::to_string(major) + std::to_string(minor) + " " + std::to_string(sm_count) +
         " SM " + std::to_string(sm_clock_khz / 1000) + " MHz memory " +
         std::to_string(memory_clock_khz / 1000) + " MHz x " + std::to_string(memory_bus_bits) + " bit " +
         std::to_string(memory_bytes >> 30) + " GiB";
}

std::string CudaInfo::driver() const {
  return "CUDA " + std::to_string(driver_version / 1000) + "." + std::to_string(driver_version % 1000 / 10);
}

Result<std::vector<CudaInfo>> CudaInfo::discover(const CudaDriver& driver) {
  int version = 0, count = 0;
  NICHE_RETURN_IF_ERROR(
      driver.check(driver.cuDriverGetVersion(&version), "cuDriverGetVersion", "the driver's version"));
  const CUresult counted = driver.cuDeviceGetCount(&count);
  if (counted == CUDA_ERROR_NO_DEVICE) return std::vector<CudaInfo>{};
  NICHE_RETURN_IF_ERROR(driver.check(counted, "cuDeviceGetCount", "devices"));
  std::vector<CudaInfo> devices;
  for (int i = 0; i < count; ++i) {
    Result<CudaInfo> info = read_device(driver, i, version);
    if (!info) return info.status();
    devices.push_back(std::move(*info));
  }
  return devices;
}

}  // namespace niche::dispatch
