// A CUDA driver of plain C++ behind the table that dispatch/devices/cuda calls through: it counts every call,
// fails the one that a test names, and keeps count of what was made and not given back.
//
// Function pointers carry no state, so there is one fake a process; reset() starts a test.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dispatch/devices/cuda/cuda_driver.h"
#include "dispatch/devices/cuda/cuda_info.h"

namespace niche::dispatch::fake_cuda {

struct Launch {
  std::string symbol;
  unsigned blocks = 0, threads = 0, shared_bytes = 0, cluster = 1;
  bool overlap = false;
  CUstream stream = nullptr;
  std::vector<unsigned char> parameter;  // the first 224 bytes of the one parameter
};

struct State {
  // What the devices are.
  int devices = 1;
  std::string name = "Fake GPU";
  int shared_per_block = 232448;
  int registers = 32;
  int threads_max = 1024;
  std::set<std::string> symbols = {"k", "k2"};
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  bool events_done = true;

  // The call that fails: the n-th from reset() on (1 is the first), with this error; 0: none.
  int fail_at = 0;
  CUresult failure = CUDA_ERROR_UNKNOWN;
  // Or every call of this name.
  std::string fail_name;

  // What a kernel does, by its symbol: called at its launch with the parameter. Memory of the fake device is
  // memory of this process.
  std::map<std::string, std::function<void(const Launch&)>> bodies;
  // What a launch takes, by its symbol; where it is empty, every pair of events is 12.5 us apart.
  std::map<std::string, double> cost_us;
  double clock_us = 0;  // of the device
  std::map<CUevent, double> event_us;
  bool hung = false;             // cuStreamSynchronize does not come back
  CUresult lost = CUDA_SUCCESS;  // every call from the next synchronisation on gives this

  // What happened.
  int calls = 0;
  std::string failed_call;
  int contexts = 0, pushed = 0, streams = 0, modules = 0, events = 0, blocks_of_memory = 0;
  int captures_exchanged = 0;  // exchanges made and not undone
  // A graph whose nodes are these launches of kernels; what an instantiated one replays now.
  std::vector<Launch> graph_nodes, exec_nodes;
  std::vector<Launch> launches;
  size_t launches_max = SIZE_MAX;  // the older ones are forgotten beyond it
};

// Calls through the driver take turns; a test that changes the state while other threads call uses these.
void advance_us(double us);
void set_cost_us(const std::string& symbol, double us);

State& state();
void reset();
std::shared_ptr<const CudaDriver> driver();

// Enough of an ELF for CudaModule's check of its headers.
std::vector<uint8_t> cubin();

}  // namespace niche::dispatch::fake_cuda
