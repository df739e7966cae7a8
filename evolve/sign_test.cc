#include "evolve/sign_test.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace niche::evolve {
namespace {

// Betting fractions: .6 notices small edges, .97 ends a clear case after about ten pairs.
constexpr std::array<double, 5> kBets = {0.6, 0.7, 0.8, 0.9, 0.97};
constexpr size_t kPairsKept = 4096;

double percentile(std::vector<double>& values, double q) {
  const auto n = static_cast<double>(values.size());
  const auto i = static_cast<size_t>(std::clamp(q * (n - 1) + 0.5, 0.0, n - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(i), values.end());
  return values[i];
}

double median(std::vector<double>& values) {
  const size_t n = values.size();
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n / 2), values.end());
  const double upper = values[n / 2];
  if (n % 2 == 1) return upper;
  return (upper + *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n / 2))) / 2;
}

bool usable(double a, double b) { return a > 0 && b > 0 && std::isfinite(a) && std::isfinite(b); }

}  // namespace

SignTest::SignTest(double margin) : log_margin_(std::log1p(margin)) {}

void SignTest::add(double time_a, double time_b) {
  if (!usable(time_a, time_b)) return;
  const double ratio = std::log(time_a) - std::log(time_b);
  const bool win = ratio > log_margin_;
  const bool loss = ratio < -log_margin_;
  ++pairs_;
  wins_ += win;
  losses_ += loss;
  for (size_t g = 0; g < kBets.size(); ++g) {
    const double hit = std::log(2 * kBets[g]), miss = std::log(2 * (1 - kBets[g]));
    faster_[g] += win ? hit : miss;
    slower_[g] += loss ? hit : miss;
  }
  faster_max_ = std::max(faster_max_, e_faster());
  slower_max_ = std::max(slower_max_, e_slower());
}

double SignTest::e_value(const Logs& logs) {
  // Summed in log space: 400 losses at p = .97 underflow, 400 wins at .97 overflow a plain product.
  const double top = *std::max_element(logs.begin(), logs.end());
  double sum = 0;
  for (double l : logs) sum += std::exp(l - top);
  const double log_e = top + std::log(sum / static_cast<double>(logs.size()));
  return std::exp(std::clamp(log_e, -700.0, 700.0));
}

double sign_test_expected_pairs(double p, double alpha) {
  if (p <= 0.5) return INFINITY;
  const double q = 1 - p;
  const double kl = p * std::log(2 * p) + (q > 0 ? q * std::log(2 * q) : 0);
  return (std::log(1 / alpha) + std::log(static_cast<double>(kBets.size()))) / kl;
}

RatioInterval bootstrap_ratio(std::span<const double> time_a, std::span<const double> time_b, uint64_t seed,
                              int resamples, double confidence) {
  std::vector<double> logs;
  const size_t n = std::min({time_a.size(), time_b.size(), kPairsKept});
  logs.reserve(n);
  for (size_t i = 0; i < n; ++i)
    if (usable(time_a[i], time_b[i])) logs.push_back(std::log(time_a[i] / time_b[i]));
  if (logs.empty()) return {};

  std::mt19937_64 random(seed);
  std::vector<double> medians, sample(logs.size());
  medians.reserve(static_cast<size_t>(resamples));
  std::uniform_int_distribution<size_t> pick(0, logs.size() - 1);
  for (int r = 0; r < resamples; ++r) {
    for (double& s : sample) s = logs[pick(random)];
    medians.push_back(median(sample));
  }
  RatioInterval interval;
  interval.median = std::exp(median(logs));
  if (medians.empty()) return {interval.median, interval.median, interval.median};
  interval.low = std::exp(percentile(medians, (1 - confidence) / 2));
  interval.high = std::exp(percentile(medians, (1 + confidence) / 2));
  return interval;
}

}  // namespace niche::evolve
