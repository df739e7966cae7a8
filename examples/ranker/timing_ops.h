// Ops that time each operator of the Ops behind them, to its end on a device: the shares in the demo's table. Not for
// serving.
//
// Thread-safety: none; one thread.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "examples/ranker/model.h"
#include "examples/ranker/place.h"

namespace ranker {

class TimingOps final : public Ops {
  template <typename F>
  auto timed(const char* op, F&& call) {
    const auto start = std::chrono::steady_clock::now();
    auto result = call();
    place_.wait();
    seconds_[op] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
  }

 public:
  TimingOps(Ops& inner, const Place& place) : inner_(inner), place_(place) {}
  // Seconds spent in each operator since construction, by the schema's name.
  const std::map<std::string, double>& seconds() const { return seconds_; }

  at::Tensor map_id(const at::Tensor& v) override {
    return timed("map_id", [&] { return inner_.map_id(v); });
  }
  at::Tensor mbdt(const at::Tensor& d) override {
    return timed("mbdt", [&] { return inner_.mbdt(d); });
  }
  at::Tensor embedding_bag(const at::Tensor& i, const at::Tensor& o) override {
    return timed("embedding_bag", [&] { return inner_.embedding_bag(i, o); });
  }
  at::Tensor conv1d(int layer, const at::Tensor& x) override {
    return timed("conv1d", [&] { return inner_.conv1d(layer, x); });
  }
  at::Tensor silu_mul(const at::Tensor& g, const at::Tensor& u) override {
    return timed("silu_mul", [&] { return inner_.silu_mul(g, u); });
  }
  std::pair<at::Tensor, at::Tensor> add_norm(int n, const at::Tensor& x, const at::Tensor& r) override {
    return timed("fused_add_rms_norm", [&] { return inner_.add_norm(n, x, r); });
  }
  at::Tensor layer_norm(const at::Tensor& x) override {
    return timed("layer_norm", [&] { return inner_.layer_norm(x); });
  }
  at::Tensor pffn(int layer, const at::Tensor& x, const at::Tensor& w1, const at::Tensor& w2) override {
    return timed("pffn", [&] { return inner_.pffn(layer, x, w1, w2); });
  }
  at::Tensor optimized_fm(const at::Tensor& x, const at::Tensor& y) override {
    return timed("optimized_fm", [&] { return inner_.optimized_fm(x, y); });
  }
  at::Tensor rms_norm(const at::Tensor& x) override {
    return timed("rms_norm", [&] { return inner_.rms_norm(x); });
  }
  at::Tensor softmax(const at::Tensor& x) override {
    return timed("softmax", [&] { return inner_.softmax(x); });
  }

 private:
  Ops& inner_;
  const Place& place_;
  std::map<std::string, double> seconds_;
};

}  // namespace ranker
