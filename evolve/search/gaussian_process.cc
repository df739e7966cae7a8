#include "evolve/search/gaussian_process.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace niche::evolve::search {
namespace {

constexpr double kWeights[] = {0.01, 0.05, 0.15, 0.4, 1.0, 2.5};
constexpr double kNoises[] = {0.001, 0.01, 0.05, 0.15};
constexpr double kFirstWeight = 0.4;

}  // namespace

double GaussianProcess::correlation(const float* a, const float* b) const {
  double sum = 0;
  for (size_t d = 0; d < static_cast<size_t>(width_); ++d)
    sum += weights_[d] * std::abs(static_cast<double>(a[d]) - static_cast<double>(b[d]));
  return std::exp(-sum);
}

double GaussianProcess::factorise(std::span<const double> y) {
  const size_t n = n_, w = static_cast<size_t>(width_);
  lower_.assign(n * n, 0);
  for (size_t i = 0; i < n; ++i) {
    double* li = &lower_[i * n];
    for (size_t j = 0; j <= i; ++j) {
      const double* lj = &lower_[j * n];
      double k = i == j ? 1 + noise_ : correlation(&rows_[i * w], &rows_[j * w]);
      for (size_t m = 0; m < j; ++m) k -= li[m] * lj[m];
      if (i != j) {
        li[j] = k / lj[j];
      } else {
        if (!(k > 1e-12)) return -std::numeric_limits<double>::infinity();
        li[i] = std::sqrt(k);
      }
    }
  }
  // L z = y, then the likelihood with the signal's variance at its best value.
  alpha_.assign(y.begin(), y.end());
  double log_det = 0, square = 0;
  for (size_t i = 0; i < n; ++i) {
    for (size_t m = 0; m < i; ++m) alpha_[i] -= lower_[i * n + m] * alpha_[m];
    alpha_[i] /= lower_[i * n + i];
    log_det += std::log(lower_[i * n + i]);
    square += alpha_[i] * alpha_[i];
  }
  const auto count = static_cast<double>(n);
  scale_ = std::sqrt(std::max(1e-12, square / count));
  return -log_det - count * std::log(scale_);
}

void GaussianProcess::fit(std::span<const float> rows, int width, std::span<const double> targets,
                          int sweeps) {
  alpha_.clear();
  n_ = targets.size();
  if (n_ == 0) return;
  if (width != width_) weights_.assign(static_cast<size_t>(width), kFirstWeight);
  width_ = width;
  rows_.assign(rows.begin(), rows.end());
  mean_ = 0;
  for (double t : targets) mean_ += t / static_cast<double>(n_);
  std::vector<double> y;
  for (double t : targets) y.push_back(t - mean_);

  double best = factorise(y);
  const auto ascend = [&](double& value, std::span<const double> grid) {
    const double before = value;
    double winner = before;
    for (double v : grid) {
      if (v == before) continue;
      value = v;
      if (const double l = factorise(y); l > best + 1e-9) best = l, winner = v;
    }
    value = winner;
  };
  for (int s = 0; s < sweeps; ++s) {
    for (size_t d = 0; d < static_cast<size_t>(width_); ++d) {
      // A feature that all samples share says nothing of its weight.
      bool varies = false;
      for (size_t i = 1; i < n_ && !varies; ++i)
        varies = rows_[i * static_cast<size_t>(width_) + d] != rows_[d];
      if (varies) ascend(weights_[d], kWeights);
    }
    ascend(noise_, kNoises);
  }
  factorise(y);
  for (size_t i = n_; i-- > 0;) {
    for (size_t m = i + 1; m < n_; ++m) alpha_[i] -= lower_[m * n_ + i] * alpha_[m];
    alpha_[i] /= lower_[i * n_ + i];
  }
}

GaussianProcess::Prediction GaussianProcess::predict(std::span<const float> row) const {
  if (empty()) return {};
  std::vector<double> k(n_);
  double mean = mean_, left = 1;
  for (size_t i = 0; i < n_; ++i) {
    k[i] = correlation(&rows_[i * static_cast<size_t>(width_)], row.data());
    mean += k[i] * alpha_[i];
  }
  for (size_t i = 0; i < n_; ++i) {
    for (size_t m = 0; m < i; ++m) k[i] -= lower_[i * n_ + m] * k[m];
    k[i] /= lower_[i * n_ + i];
    left -= k[i] * k[i];
  }
  return {mean, scale_ * std::sqrt(std::max(0.0, left))};
}

}  // namespace niche::evolve::search
