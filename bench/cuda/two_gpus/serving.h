// What the checks of servers on GPUs share: operators with device tensors that are called and compared with the
// library's first answer, and the Runtime's lines with their times.
#pragma once

#include <ATen/ATen.h>
#include <sched.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/handle_state.h"
#include "runtime/runtime.h"

namespace niche::two_gpus {

using Steady = std::chrono::steady_clock;

template <typename T>
T must(Result<T> r) {
  if (!r.ok()) throw std::runtime_error(r.status().to_string());
  return std::move(*r);
}
inline void must(const Status& s) {
  if (!s.ok()) throw std::runtime_error(s.to_string());
}
inline double us_since(Steady::time_point start) {
  return std::chrono::duration<double, std::micro>(Steady::now() - start).count();
}
// The CPUs that this process may use, in order; asked before any thread is pinned.
inline std::vector<int> cpus_of_process() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &set)) cpus.push_back(i);
  return cpus;
}
// The CPUs of one core: this one, and those that run beside it there.
inline std::vector<int> siblings(int cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
  std::vector<int> core{cpu};
  char sign = ',';
  for (int first = 0; sign == ',' && file >> first;) {
    int last = first;
    if (file >> sign && sign == '-') {
      file >> last;
      if (!(file >> sign)) sign = 0;
    }
    for (int i = first; i <= last; ++i)
      if (i != cpu) core.push_back(i);
    if (!file) break;
  }
  return core;
}
// The calling thread, and what it starts from now on.
inline void pin(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int i : cpus) CPU_SET(i, &set);
  if (cpus.empty() || ::sched_setaffinity(0, sizeof set, &set) != 0)
    throw std::runtime_error("cannot pin a thread to " + std::to_string(cpus.size()) + " CPUs");
}
// `v` is reordered.
inline double quantile(std::vector<double>& v, double q) {
  if (v.empty()) return NAN;
  const auto at = v.begin() + static_cast<long>(q * static_cast<double>(v.size() - 1));
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

class Events final : public dispatch::LogSink {
 public:
  explicit Events(const std::string& path) : file_(path) {}
  void write(dispatch::LogLevel, std::string_view part, std::string_view text) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    file_ << us_since(start_) / 1e6 << ' ' << part << ' ' << text << std::endl;
    lines_.emplace_back(text);
  }
  size_t count(std::string_view words) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t n = 0;
    for (const std::string& l : lines_) n += l.find(words) != std::string::npos;
    return n;
  }
  std::string first(std::string_view words) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& l : lines_)
      if (l.find(words) != std::string::npos) return l;
    return "";
  }

 private:
  const Steady::time_point start_ = Steady::now();
  mutable std::mutex mutex_;
  std::ofstream file_;
  std::vector<std::string> lines_;
};

// One bf16 operator with its tensors on a device; the last one is the output.
struct Served {
  std::string name;
  OpHandle handle;
  int device = 0;
  std::vector<at::Tensor> tensors;
  std::vector<DLTensor> args;
  at::Tensor want;
  double tolerance = 0;

  Served(std::string its_name, OpHandle its_handle, int ordinal, std::vector<at::Tensor> its_tensors)
      : name(std::move(its_name)),
        handle(std::move(its_handle)),
        device(ordinal),
        tensors(std::move(its_tensors)) {
    for (at::Tensor& t : tensors) {
      DLTensor d{};
      d.data = t.data_ptr();
      d.device = {kDLCUDA, ordinal};
      d.ndim = static_cast<int>(t.dim());
      d.shape = const_cast<int64_t*>(t.sizes().data());
      d.dtype = kBf16;
      args.push_back(d);
    }
  }
  Status call() { return handle.call(args, nullptr); }
  // By the library, while nothing else serves.
  void learn() {
    must(call());
    want = tensors.back().to(at::kFloat).clone();
    tolerance = 0.02 * want.abs().max().item<double>();
  }
  // Requires: its work has ended. Waits for the device.
  bool right() const {
    const double worst = (tensors.back().to(at::kFloat) - want).abs().max().item<double>();
    return std::isfinite(worst) && worst <= tolerance;
  }
};

inline at::Device gpu(int ordinal) { return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(ordinal)); }
inline at::Tensor random(at::IntArrayRef shape, int ordinal, double scale = 1, double mean = 0) {
  return (at::randn(shape, at::TensorOptions(gpu(ordinal)).dtype(at::kFloat)) * scale + mean)
      .to(at::kBFloat16);
}
inline at::Tensor blank(at::IntArrayRef shape, int ordinal) {
  return at::zeros(shape, at::TensorOptions(gpu(ordinal)).dtype(at::kBFloat16));
}

}  // namespace niche::two_gpus
