// ShapePredictor: how long a call of this shape usually takes, so that calls of different shapes can be
// compared.
//
// A shape seen often has its own mean of log time; others follow a line, log time = a + b log work, fitted to
// all calls. It learns from both arms alike and predicts before it learns from a call: under "no difference"
// its state does not depend on who was in which arm, and pairs stay exchangeable. (Learning from the control
// arm alone would tilt the pairs in which the control came first.)
//
// Thread-safety: one owner. Bounds: `shapes_max` shapes; later ones use the line. Cost: 50 ns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace niche::rollout {

class ShapePredictor {
 public:
  explicit ShapePredictor(size_t shapes_max = 1024) : shapes_max_(shapes_max) {}

  // `work`: the operator's cost in any unit, > 0. Returns log(ns / predicted) and then learns from the call.
  // The first call of all predicts itself (0).
  double log_ratio(uint64_t shape_hash, double work, double ns);
  size_t shapes() const { return shapes_.size(); }

 private:
  struct Shape {
    double mean = 0;
    int64_t calls = 0;
  };
  static constexpr int64_t kOwnMeanAfter = 4;   // calls before a shape's own mean is better than the line
  static constexpr double kForget = 1.0 / 256;  // both follow a drifting machine
  double line(double log_work) const;

  size_t shapes_max_;
  std::unordered_map<uint64_t, Shape> shapes_;
  // Exponentially weighted moments of (log work, log time).
  double weight_ = 0, mean_x_ = 0, mean_y_ = 0, var_x_ = 0, cov_ = 0;
};

}  // namespace niche::rollout
