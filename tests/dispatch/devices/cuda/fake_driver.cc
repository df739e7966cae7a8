#include "tests/dispatch/devices/cuda/fake_driver.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

namespace niche::dispatch::fake_cuda {
namespace {

std::recursive_mutex& turn() {
  static std::recursive_mutex m;
  return m;
}

// One call more; is it the one that fails?
CUresult called(const char* name) {
  const std::lock_guard lock(turn());
  State& s = state();
  ++s.calls;
  if (s.calls == s.fail_at || s.fail_name == name) {
    s.failed_call = name;
    return s.failure;
  }
  return s.lost;
}

#define NICHE_FAKE_CALL(name)                                          \
  const std::lock_guard lock_(turn());                                 \
  if (const CUresult r_ = called(name); r_ != CUDA_SUCCESS) return r_; \
  State& s = state();                                                  \
  (void)s

template <typename T>
T handle(const void* p) {
  return reinterpret_cast<T>(const_cast<void*>(p));
}

const std::string* symbol_of(CUfunction f) { return reinterpret_cast<const std::string*>(f); }

int attribute_of_device(CUdevice_attribute a) {
  switch (a) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return 0;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return 1980000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return 3201000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return 6144;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return state().shared_per_block;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return 65536;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return 233472;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return 60 << 20;
    default:
      return 2048;
  }
}

void record(CUfunction f, unsigned blocks, unsigned threads, unsigned shared, CUstream stream,
            void** parameters) {
  Launch l;
  l.symbol = *symbol_of(f);
  l.blocks = blocks;
  l.threads = threads;
  l.shared_bytes = shared;
  l.stream = stream;
  l.parameter.resize(224);
  std::memcpy(l.parameter.data(), parameters[0], l.parameter.size());
  if (state().launches.size() >= state().launches_max) state().launches.clear();
  state().launches.push_back(l);
  if (const auto cost = state().cost_us.find(l.symbol); cost != state().cost_us.end())
    state().clock_us += cost->second;
  const auto body = state().bodies.find(l.symbol);
  if (body != state().bodies.end()) body->second(l);
}

void* memory(CUdeviceptr p) { return reinterpret_cast<void*>(static_cast<uintptr_t>(p)); }

CudaDriver make() {
  CudaDriver d;
  d.cuInit = [](unsigned) -> CUresult { return called("cuInit"); };
  d.cuDriverGetVersion = [](int* v) -> CUresult {
    NICHE_FAKE_CALL("cuDriverGetVersion");
    *v = 13000;
    return CUDA_SUCCESS;
  };
  d.cuGetErrorName = [](CUresult, const char** text) -> CUresult {
    *text = "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
  };
  d.cuGetErrorString = [](CUresult, const char** text) -> CUresult {
    *text = "injected";
    return CUDA_SUCCESS;
  };
  d.cuDeviceGetCount = [](int* n) -> CUresult {
    NICHE_FAKE_CALL("cuDeviceGetCount");
    *n = s.devices;
    return CUDA_SUCCESS;
  };
  d.cuDeviceGet = [](CUdevice* device, int ordinal) -> CUresult {
    NICHE_FAKE_CALL("cuDeviceGet");
    *device = ordinal;
    return CUDA_SUCCESS;
  };
  d.cuDeviceGetName = [](char* name, int bytes, CUdevice) -> CUresult {
    NICHE_FAKE_CALL("cuDeviceGetName");
    std::strncpy(name, s.name.c_str(), static_cast<size_t>(bytes));
    return CUDA_SUCCESS;
  };
  d.cuDeviceGetUuid = [](CUuuid* uuid, CUdevice) -> CUresult {
    NICHE_FAKE_CALL("cuDeviceGetUuid");
    for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(0xa0 + i);
    return CUDA_SUCCESS;
  };
  d.cuDeviceGetAttribute = [](int* v, CUdevice_attribute a, CUdevice) -> CUresult {
    NICHE_FAKE_CALL("cuDeviceGetAttribute");
    *v = attribute_of_device(a);
    return CUDA_SUCCESS;
  };
  d.cuDeviceTotalMem = [](size_t* bytes, CUdevice) -> CUresult {
    NICHE_FAKE_CALL("cuDeviceTotalMem");
    *bytes = size_t{139} << 30;
    return CUDA_SUCCESS;
  };
  d.cuDevicePrimaryCtxRetain = [](CUcontext* c, CUdevice) -> CUresult {
    NICHE_FAKE_CALL("cuDevicePrimaryCtxRetain");
    ++s.contexts;
    *c = handle<CUcontext>(&s);
    return CUDA_SUCCESS;
  };
  d.cuDevicePrimaryCtxRelease = [](CUdevice) -> CUresult {
    NICHE_FAKE_CALL("cuDevicePrimaryCtxRelease");
    --s.contexts;
    return CUDA_SUCCESS;
  };
  d.cuCtxPushCurrent = [](CUcontext) -> CUresult {
    NICHE_FAKE_CALL("cuCtxPushCurrent");
    ++s.pushed;
    return CUDA_SUCCESS;
  };
  d.cuCtxPopCurrent = [](CUcontext*) -> CUresult {
    NICHE_FAKE_CALL("cuCtxPopCurrent");
    --s.pushed;
    return CUDA_SUCCESS;
  };
  d.cuModuleLoadData = [](CUmodule* m, const void*) -> CUresult {
    NICHE_FAKE_CALL("cuModuleLoadData");
    ++s.modules;
    *m = handle<CUmodule>(&s);
    return CUDA_SUCCESS;
  };
  d.cuModuleUnload = [](CUmodule) -> CUresult {
    NICHE_FAKE_CALL("cuModuleUnload");
    --s.modules;
    return CUDA_SUCCESS;
  };
  d.cuModuleGetFunction = [](CUfunction* f, CUmodule, const char* name) -> CUresult {
    NICHE_FAKE_CALL("cuModuleGetFunction");
    const auto found = s.symbols.find(name);
    if (found == s.symbols.end()) return CUDA_ERROR_NOT_FOUND;
    *f = handle<CUfunction>(&*found);
    return CUDA_SUCCESS;
  };
  d.cuFuncGetAttribute = [](int* v, CUfunction_attribute a, CUfunction) -> CUresult {
    NICHE_FAKE_CALL("cuFuncGetAttribute");
    *v = a == CU_FUNC_ATTRIBUTE_NUM_REGS                ? s.registers
         : a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? s.threads_max
                                                        : 0;
    return CUDA_SUCCESS;
  };
  d.cuFuncSetAttribute = [](CUfunction, CUfunction_attribute, int) -> CUresult {
    return called("cuFuncSetAttribute");
  };
  d.cuStreamCreateWithPriority = [](CUstream* stream, unsigned, int) -> CUresult {
    NICHE_FAKE_CALL("cuStreamCreateWithPriority");
    ++s.streams;
    *stream = handle<CUstream>(&s.streams);
    return CUDA_SUCCESS;
  };
  d.cuStreamDestroy = [](CUstream) -> CUresult {
    NICHE_FAKE_CALL("cuStreamDestroy");
    --s.streams;
    return CUDA_SUCCESS;
  };
  d.cuStreamSynchronize = [](CUstream) -> CUresult {
    while (state().hung) ::pause();
    return called("cuStreamSynchronize");
  };
  d.cuMemAlloc = [](CUdeviceptr* p, size_t bytes) -> CUresult {
    NICHE_FAKE_CALL("cuMemAlloc");
    void* block = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (block == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    ++s.blocks_of_memory;
    *p = reinterpret_cast<uintptr_t>(block);
    return CUDA_SUCCESS;
  };
  d.cuMemFree = [](CUdeviceptr p) -> CUresult {
    std::free(memory(p));
    --state().blocks_of_memory;
    return called("cuMemFree");
  };
  d.cuMemsetD8 = [](CUdeviceptr p, unsigned char v, size_t bytes) -> CUresult {
    NICHE_FAKE_CALL("cuMemsetD8");
    std::memset(memory(p), v, bytes);
    return CUDA_SUCCESS;
  };
  d.cuMemcpyHtoD = [](CUdeviceptr to, const void* from, size_t bytes) -> CUresult {
    NICHE_FAKE_CALL("cuMemcpyHtoD");
    std::memcpy(memory(to), from, bytes);
    return CUDA_SUCCESS;
  };
  d.cuMemcpyDtoH = [](void* to, CUdeviceptr from, size_t bytes) -> CUresult {
    NICHE_FAKE_CALL("cuMemcpyDtoH");
    std::memcpy(to, memory(from), bytes);
    return CUDA_SUCCESS;
  };
  d.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) -> CUresult {
    NICHE_FAKE_CALL("cuStreamIsCapturing");
    *status = s.capture;
    return CUDA_SUCCESS;
  };
  d.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* mode) -> CUresult {
    NICHE_FAKE_CALL("cuThreadExchangeStreamCaptureMode");
    s.captures_exchanged += *mode == CU_STREAM_CAPTURE_MODE_RELAXED ? 1 : -1;
    *mode = *mode == CU_STREAM_CAPTURE_MODE_RELAXED ? CU_STREAM_CAPTURE_MODE_GLOBAL
                                                    : CU_STREAM_CAPTURE_MODE_RELAXED;
    return CUDA_SUCCESS;
  };
  d.cuEventCreate = [](CUevent* e, unsigned) -> CUresult {
    NICHE_FAKE_CALL("cuEventCreate");
    ++s.events;
    static uintptr_t next = 0x1000;
    *e = reinterpret_cast<CUevent>(next += 16);  // never followed
    return CUDA_SUCCESS;
  };
  d.cuEventDestroy = [](CUevent) -> CUresult {
    NICHE_FAKE_CALL("cuEventDestroy");
    --s.events;
    return CUDA_SUCCESS;
  };
  d.cuEventRecord = [](CUevent e, CUstream) -> CUresult {
    NICHE_FAKE_CALL("cuEventRecord");
    if (!s.cost_us.empty()) s.event_us[e] = s.clock_us;
    return CUDA_SUCCESS;
  };
  d.cuEventQuery = [](CUevent) -> CUresult {
    NICHE_FAKE_CALL("cuEventQuery");
    return s.events_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  };
  d.cuEventElapsedTime = [](float* ms, CUevent from, CUevent to) -> CUresult {
    NICHE_FAKE_CALL("cuEventElapsedTime");
    *ms = s.cost_us.empty() ? 0.0125f : static_cast<float>((s.event_us[to] - s.event_us[from]) * 1e-3);
    return CUDA_SUCCESS;
  };
  d.cuLaunchKernel = [](CUfunction f, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned,
                        unsigned shared, CUstream stream, void** parameters, void**) -> CUresult {
    NICHE_FAKE_CALL("cuLaunchKernel");
    record(f, gx, bx, shared, stream, parameters);
    return CUDA_SUCCESS;
  };
  d.cuLaunchKernelEx = [](const CUlaunchConfig* c, CUfunction f, void** parameters, void**) -> CUresult {
    NICHE_FAKE_CALL("cuLaunchKernelEx");
    record(f, c->gridDimX, c->blockDimX, c->sharedMemBytes, c->hStream, parameters);
    for (unsigned i = 0; i < c->numAttrs; ++i) {
      if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        s.launches.back().cluster = c->attrs[i].value.clusterDim.x;
      if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        s.launches.back().overlap = c->attrs[i].value.programmaticStreamSerializationAllowed != 0;
    }
    return CUDA_SUCCESS;
  };
  d.cuOccupancyMaxActiveClusters = [](int* n, CUfunction, const CUlaunchConfig*) -> CUresult {
    NICHE_FAKE_CALL("cuOccupancyMaxActiveClusters");
    *n = 30;
    return CUDA_SUCCESS;
  };
  d.cuGraphGetNodes = [](CUgraph, CUgraphNode* nodes, size_t* count) -> CUresult {
    NICHE_FAKE_CALL("cuGraphGetNodes");
    for (size_t i = 0; nodes != nullptr && i < s.graph_nodes.size(); ++i)
      nodes[i] = handle<CUgraphNode>(&s.graph_nodes[i]);
    *count = s.graph_nodes.size();
    return CUDA_SUCCESS;
  };
  d.cuGraphNodeGetType = [](CUgraphNode, CUgraphNodeType* type) -> CUresult {
    NICHE_FAKE_CALL("cuGraphNodeGetType");
    *type = CU_GRAPH_NODE_TYPE_KERNEL;
    return CUDA_SUCCESS;
  };
  d.cuGraphKernelNodeGetParams = [](CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* p) -> CUresult {
    NICHE_FAKE_CALL("cuGraphKernelNodeGetParams");
    auto* l = reinterpret_cast<Launch*>(node);
    static void* parameters[1];
    parameters[0] = l->parameter.data();
    *p = {};
    p->func = handle<CUfunction>(&*s.symbols.find(l->symbol));
    p->gridDimX = l->blocks, p->blockDimX = l->threads, p->sharedMemBytes = l->shared_bytes;
    p->kernelParams = parameters;
    return CUDA_SUCCESS;
  };
  d.cuGraphExecKernelNodeSetParams = [](CUgraphExec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS* p) -> CUresult {
    NICHE_FAKE_CALL("cuGraphExecKernelNodeSetParams");
    const auto at = static_cast<size_t>(reinterpret_cast<Launch*>(node) - s.graph_nodes.data());
    s.exec_nodes.resize(s.graph_nodes.size());
    Launch& l = s.exec_nodes[at];
    l.symbol = *symbol_of(p->func);
    l.blocks = p->gridDimX, l.threads = p->blockDimX, l.shared_bytes = p->sharedMemBytes;
    l.parameter.resize(224);
    std::memcpy(l.parameter.data(), p->kernelParams[0], l.parameter.size());
    return CUDA_SUCCESS;
  };
  return d;
}

}  // namespace

void advance_us(double us) {
  const std::lock_guard lock(turn());
  state().clock_us += us;
}
void set_cost_us(const std::string& symbol, double us) {
  const std::lock_guard lock(turn());
  state().cost_us[symbol] = us;
}

State& state() {
  static State s;
  return s;
}
void reset() { state() = State(); }
std::shared_ptr<const CudaDriver> driver() { return std::make_shared<const CudaDriver>(make()); }

std::vector<uint8_t> cubin() {
  std::vector<uint8_t> b(128, 0);
  b[0] = 0x7f, b[1] = 'E', b[2] = 'L', b[3] = 'F', b[4] = 2;
  b[40] = 64;  // section headers
  b[58] = 64;  // bytes each
  b[60] = 1;   // how many
  return b;
}

}  // namespace niche::dispatch::fake_cuda
