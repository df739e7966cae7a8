// GaussianProcess: regression for a few dozen samples, where trees have too little to split. The kernel is a
// product over features of exp(-weight * |difference|): rough (no smoothness is promised from one unroll factor
// to the next) and with one weight a feature, so that a parameter without influence is found to have none. The
// weights and the noise are those of greatest marginal likelihood on a small grid, by coordinate ascent from the
// last ones.
//
// Source: Rasmussen, Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1 and section 5.4.
// Thread-safety: one owner while fitting; predict is const. Cost: fit O(n^3) some hundred times, 10-20 ms at 64
// samples of 10 features; a prediction O(n^2), 2 µs at 64.
#pragma once

#include <span>
#include <vector>

namespace niche::evolve::search {

class GaussianProcess {
 public:
  struct Prediction {
    double mean = 0;
    double deviation = 0;
  };

  // `rows` holds samples of `width` features each, scaled to about [0, 1]; one target a row. Earlier weights
  // are where the ascent starts; `sweeps` of it.
  void fit(std::span<const float> rows, int width, std::span<const double> targets, int sweeps);
  Prediction predict(std::span<const float> row) const;
  // The kernel's value for two rows: 1 for equal ones. 0 where nothing was fitted.
  double likeness(std::span<const float> a, std::span<const float> b) const {
    return empty() ? 0 : correlation(a.data(), b.data());
  }
  bool empty() const { return alpha_.empty(); }

 private:
  double correlation(const float* a, const float* b) const;
  // Factorises for the present weights; the log likelihood, -infinity where that fails.
  double factorise(std::span<const double> centred);

  int width_ = 0;
  size_t n_ = 0;
  std::vector<float> rows_;
  std::vector<double> weights_;
  double noise_ = 0.01;  // variance, as a share of the signal's
  double mean_ = 0, scale_ = 1;
  std::vector<double> lower_, alpha_;  // Cholesky factor by rows, K^-1 y
};

}  // namespace niche::evolve::search
