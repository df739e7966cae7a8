// GaussianProcess: regression for a few dozen samples, where trees have too little to split. Each feature has a
// kernel of its own, exp(-weight * |difference|): rough (no smoothness is promised from one unroll factor to the
// next) and with one weight a feature, so that a parameter without influence is found to have none. The process'
// kernel is a mixture of their product (everything acts together), of the mean over pairs of features and of the
// mean over single ones (each acts alone): where parameters add up, a dozen samples then tell of points that share
// no two values with any of them. Weights, mixture and noise are those of greatest marginal likelihood on a small
// grid, by coordinate ascent from the last ones.
//
// Sources: Rasmussen, Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1 and section 5.4;
// Duvenaud, Nickisch, Rasmussen, "Additive Gaussian Processes" (2011).
// Thread-safety: one owner while fitting; the rest is const. Cost: fit O(n^3) some hundred times, 10-20 ms at 64
// samples of 10 features; a mean O(n), under 1 µs; a prediction O(n^2), 3 µs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace niche::evolve::search {

class GaussianProcess {
 public:
  using Row = std::span<const uint8_t>;  // of each feature the number of its value
  struct Prediction {
    double mean = 0;
    double deviation = 0;
    std::vector<double> whitened;  // what likeness() needs
  };

  // `values[d]`: what feature d can be, at most 256 values, scaled to about [0, 1].
  explicit GaussianProcess(std::vector<std::vector<float>> values);

  // `rows` holds samples, one after the other; one target a row. `sweeps` of the ascent.
  void fit(std::span<const uint8_t> rows, std::span<const double> targets, int sweeps);
  double mean(Row row) const;
  Prediction predict(Row row) const;
  // How much a measurement of `b` would tell of `a` beyond what the samples tell: the correlation of the two under
  // the posterior, 0 to 1. The deviation of `a` would shrink by sqrt(1 - likeness^2). 0 where nothing was fitted.
  double likeness(Row a, const Prediction& of_a, Row b, const Prediction& of_b) const;
  bool empty() const { return alpha_.empty(); }

 private:
  void tabulate(size_t feature);
  double kernel(const uint8_t* a, const uint8_t* b) const;
  // Factorises for the present weights; the log likelihood, -infinity where that fails.
  double factorise(std::span<const double> centred);
  void ascend(std::span<const double> centred);

  size_t width_;
  std::vector<std::vector<float>> values_;
  std::vector<double> weights_;
  std::vector<std::vector<double>> tables_;  // of each feature its kernel, by two numbers of values
  size_t mixture_ = 0;
  double noise_ = 0.01;  // variance, as a share of the signal's
  size_t n_ = 0;
  std::vector<uint8_t> rows_;
  double mean_ = 0, scale_ = 1;
  std::vector<double> lower_, alpha_;  // Cholesky factor by rows, K^-1 y
};

}  // namespace niche::evolve::search
