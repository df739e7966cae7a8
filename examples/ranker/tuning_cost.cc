#include "examples/ranker/tuning_cost.h"

#include <algorithm>
#include <random>

#include "runtime/cli/replay/load.h"

namespace ranker {
namespace {

constexpr int kResamples = 200;
constexpr uint64_t kSeed = 20;

}  // namespace

void TuningCostMeter::begin(int quad, int at) {
  const std::lock_guard lock(mutex_);
  quads_.resize(std::max(quads_.size(), static_cast<size_t>(quad) + 1));
  on_ = kOn[static_cast<size_t>(at)];
}

void TuningCostMeter::add(double scheduled_s, double latency_ms, bool tuning) {
  const std::lock_guard lock(mutex_);
  if (quads_.empty() || scheduled_s < kSettleSeconds || tuning != on_) return;
  (on_ ? quads_.back().on : quads_.back().off).push_back(latency_ms);
}

TuningCost TuningCostMeter::summary() const {
  using niche::replay::quantile;
  const std::lock_guard lock(mutex_);
  // A quad in which no session ran says nothing of them.
  std::vector<const Quad*> whole;
  for (const Quad& q : quads_)
    if (!q.off.empty() && q.on.size() * 2 > q.off.size()) whole.push_back(&q);
  TuningCost c;
  if (whole.empty()) return c;
  const auto pool = [](const std::vector<const Quad*>& quads) {
    Quad all;
    for (const Quad* q : quads) {
      all.off.insert(all.off.end(), q->off.begin(), q->off.end());
      all.on.insert(all.on.end(), q->on.begin(), q->on.end());
    }
    return all;
  };
  const Quad all = pool(whole);
  c.quads = static_cast<int>(whole.size());
  c.requests_off = static_cast<int64_t>(all.off.size());
  c.requests_on = static_cast<int64_t>(all.on.size());
  c.p50_off_ms = quantile(all.off, 0.5), c.p50_on_ms = quantile(all.on, 0.5);
  c.p99_off_ms = quantile(all.off, 0.99), c.p99_on_ms = quantile(all.on, 0.99);
  c.p50_ratio = c.p50_on_ms / c.p50_off_ms, c.p99_ratio = c.p99_on_ms / c.p99_off_ms;
  std::mt19937_64 rng(kSeed);
  std::vector<double> ratios;
  for (int i = 0; i < kResamples; ++i) {
    std::vector<const Quad*> drawn;
    for (size_t n = 0; n < whole.size(); ++n) drawn.push_back(whole[rng() % whole.size()]);
    const Quad q = pool(drawn);
    ratios.push_back(quantile(q.on, 0.99) / quantile(q.off, 0.99));
  }
  c.p99_ratio_low = quantile(ratios, 0.025), c.p99_ratio_high = quantile(ratios, 0.975);
  return c;
}

}  // namespace ranker
