#include "evolve/search/gaussian_process.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace niche::evolve::search {
namespace {

constexpr double kWeights[] = {0.01, 0.05, 0.15, 0.4, 1.0, 2.5};
constexpr double kNoises[] = {0.001, 0.01, 0.05, 0.15};
constexpr double kFirstWeight = 0.4;
// Shares of the three kernels; each row's sum is 1, so that a point is like itself by 1. The product alone first: what a
// few samples speak for.
struct Mixture {
  double product, pairs, single;
};
constexpr Mixture kMixtures[] = {{1, 0, 0},       {0.5, 0, 0.5},     {0.2, 0, 0.8},
                                 {0.3, 0.4, 0.3}, {0.1, 0.45, 0.45}, {0.05, 0.8, 0.15}};

}  // namespace

GaussianProcess::GaussianProcess(std::vector<std::vector<float>> values)
    : width_(values.size()), values_(std::move(values)), weights_(width_, kFirstWeight), tables_(width_) {
  for (size_t d = 0; d < width_; ++d) tabulate(d);
}

void GaussianProcess::tabulate(size_t d) {
  const std::vector<float>& v = values_[d];
  tables_[d].resize(v.size() * v.size());
  for (size_t i = 0; i < v.size(); ++i)
    for (size_t j = 0; j < v.size(); ++j)
      tables_[d][i * v.size() + j] =
          std::exp(-weights_[d] * std::abs(static_cast<double>(v[i]) - static_cast<double>(v[j])));
}

double GaussianProcess::kernel(const uint8_t* a, const uint8_t* b) const {
  double product = 1, sum = 0, squares = 0;
  for (size_t d = 0; d < width_; ++d) {
    const double k = tables_[d][a[d] * values_[d].size() + b[d]];
    product *= k;
    sum += k;
    squares += k * k;
  }
  const Mixture& m = kMixtures[mixture_];
  const auto w = static_cast<double>(width_);
  const double pairs = width_ > 1 ? (sum * sum - squares) / (w * (w - 1)) : product;
  return m.product * product + m.pairs * pairs + m.single * sum / w;
}

double GaussianProcess::factorise(std::span<const double> y) {
  const size_t n = n_;
  lower_.assign(n * n, 0);
  for (size_t i = 0; i < n; ++i) {
    double* li = &lower_[i * n];
    for (size_t j = 0; j <= i; ++j) {
      const double* lj = &lower_[j * n];
      double k = i == j ? 1 + noise_ : kernel(&rows_[i * width_], &rows_[j * width_]);
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

// One sweep: each weight, the mixture, the noise.
void GaussianProcess::ascend(std::span<const double> y) {
  double best = factorise(y);
  // Sets `value` to the candidate that makes the samples likeliest; `changed` is called after each change.
  const auto choose = [&](auto& value, const auto& candidates, const auto& changed) {
    const auto before = value;
    auto winner = before;
    for (const auto v : candidates) {
      if (v == before) continue;
      value = v;
      changed();
      if (const double l = factorise(y); l > best + 1e-9) best = l, winner = v;
    }
    value = winner;
    changed();
  };
  for (size_t d = 0; d < width_; ++d) {
    // A feature that all samples share says nothing of its weight.
    bool varies = false;
    for (size_t i = 1; i < n_ && !varies; ++i) varies = rows_[i * width_ + d] != rows_[d];
    if (varies) choose(weights_[d], kWeights, [&] { tabulate(d); });
  }
  constexpr size_t kMixtureNumbers[] = {0, 1, 2, 3, 4, 5};
  static_assert(std::size(kMixtureNumbers) == std::size(kMixtures));
  choose(mixture_, kMixtureNumbers, [] {});
  choose(noise_, kNoises, [] {});
}

void GaussianProcess::fit(std::span<const uint8_t> rows, std::span<const double> targets, int sweeps) {
  alpha_.clear();
  n_ = targets.size();
  if (n_ == 0) return;
  rows_.assign(rows.begin(), rows.end());
  mean_ = 0;
  for (double t : targets) mean_ += t / static_cast<double>(n_);
  std::vector<double> y;
  for (double t : targets) y.push_back(t - mean_);
  for (int s = 0; s < sweeps; ++s) ascend(y);
  factorise(y);
  for (size_t i = n_; i-- > 0;) {
    for (size_t m = i + 1; m < n_; ++m) alpha_[i] -= lower_[m * n_ + i] * alpha_[m];
    alpha_[i] /= lower_[i * n_ + i];
  }
}

double GaussianProcess::mean(Row row) const {
  if (empty()) return 0;
  double mean = mean_;
  for (size_t i = 0; i < n_; ++i) mean += kernel(&rows_[i * width_], row.data()) * alpha_[i];
  return mean;
}

GaussianProcess::Prediction GaussianProcess::predict(Row row) const {
  if (empty()) return {};
  std::vector<double> k(n_);
  double mean = mean_, left = 1;
  for (size_t i = 0; i < n_; ++i) {
    k[i] = kernel(&rows_[i * width_], row.data());
    mean += k[i] * alpha_[i];
  }
  for (size_t i = 0; i < n_; ++i) {
    for (size_t m = 0; m < i; ++m) k[i] -= lower_[i * n_ + m] * k[m];
    k[i] /= lower_[i * n_ + i];
    left -= k[i] * k[i];
  }
  return {mean, scale_ * std::sqrt(std::max(0.0, left)), std::move(k)};
}

double GaussianProcess::likeness(Row a, const Prediction& of_a, Row b, const Prediction& of_b) const {
  if (empty()) return 0;
  constexpr double kLeastVariance = 1e-12;
  double both = kernel(a.data(), b.data());
  for (size_t i = 0; i < n_; ++i) both -= of_a.whitened[i] * of_b.whitened[i];
  const double va = of_a.deviation * of_a.deviation / (scale_ * scale_);
  const double vb = of_b.deviation * of_b.deviation / (scale_ * scale_);
  // What is measured of b carries noise.
  return std::min(1.0, std::abs(both) / std::sqrt((va + kLeastVariance) * (vb + noise_)));
}

}  // namespace niche::evolve::search
