#include "runtime/rollout/evidence.h"

#include <algorithm>
#include <cmath>

namespace niche::rollout {
namespace {

// Small bets notice small edges, given time; the large one ends a clear case after about ten pairs.
constexpr std::array<double, 6> kLambdas = {0.03, 0.08, 0.2, 0.4, 0.7, 0.94};
constexpr double kFirstScale = 0.2;                   // of |d|, before any pair
constexpr double kScaleMin = 0.005, kScaleMax = 2;    // timers' grain; nothing sane is wider
constexpr double kStepFirst = 0.3, kStepLast = 0.02;  // of the running median, relative

}  // namespace

PairEvidence::PairEvidence(double margin) : margin_(std::log1p(margin)), scale_(kFirstScale) {}

void PairEvidence::add(double challenger, double control) {
  const double d = control - challenger;  // > 0: the challenger was quicker
  if (!std::isfinite(d)) return;
  ++pairs_;
  // The scale is of earlier pairs alone: a bet may depend on the past, not on its own outcome.
  bet(faster_, std::clamp((d - margin_) / scale_, -1.0, 1.0));
  bet(slower_, std::clamp((-d - margin_) / scale_, -1.0, 1.0));
  const double step = std::max(kStepFirst / std::sqrt(static_cast<double>(pairs_)), kStepLast);
  scale_ = std::clamp(scale_ * (std::abs(d) > scale_ ? 1 + step : 1 / (1 + step)), kScaleMin, kScaleMax);
}

void PairEvidence::bet(Logs& logs, double g) {
  for (size_t i = 0; i < kLambdas.size(); ++i) logs[i] += std::log1p(kLambdas[i] * g);
}

double PairEvidence::e_value(const Logs& logs) {
  // In log space: products of thousands of bets leave the range of a double.
  const double top = *std::max_element(logs.begin(), logs.end());
  double sum = 0;
  for (double l : logs) sum += std::exp(l - top);
  return std::exp(std::clamp(top + std::log(sum / kBets), -700.0, 700.0));
}

}  // namespace niche::rollout
