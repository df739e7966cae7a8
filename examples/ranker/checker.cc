#include "examples/ranker/checker.h"

#include <ATen/ops/cat.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

namespace ranker {
namespace {

// A response is wrong when a value is further from fp64 than fp32 arithmetic explains. The chain ends in sums
// over 448 columns and means over 150 tokens of values near 1, so the library's own error is about 1e-6;
// Winograd's may be 16 times the library's. A wrong kernel is off by 1e-2 and more.
constexpr double kRelative = 2e-4, kAbsolute = 5e-5;

// The head of a response tells which kernels made it; its thousands of numbers need no parsing for that. The share of its
// calls that evolved kernels answered.
double evolved_share(const std::string& body) {
  long long id = 0, calls = 0, evolved = 0;
  if (std::sscanf(body.c_str(), R"({"id":%lld,"calls":%lld,"evolved":%lld)", &id, &calls, &evolved) != 3)
    return 0;
  return calls > 0 ? static_cast<double>(evolved) / static_cast<double>(calls) : 0;
}

}  // namespace

bool is_sampled(uint64_t id, uint64_t one_in) { return (id * 0x9e3779b97f4a7c15ULL >> 32) % one_in == 0; }

void Checker::offer(const niche::replay::RequestSpec& request, const std::string& body) {
  if (body.find("\"features\"") == std::string::npos) return;
  const double share = evolved_share(body);
  const std::lock_guard lock(mutex_);
  auto& kept = share > 0 ? evolved_ : library_;
  if (kept.size() < (share > 0 ? samples_max_ * 2 / 3 : samples_max_ / 3)) {
    kept.push_back({share, request, body});
    return;
  }
  const auto least = std::min_element(kept.begin(), kept.end(),
                                      [](const Kept& a, const Kept& b) { return a.share < b.share; });
  if (least != kept.end() && least->share < share) *least = {share, request, body};
}

Checker::Outcome Checker::check(uint64_t weights_seed, int threads) {
  const Weights weights = Weights::make(weights_seed).to_double();
  std::vector<Kept> all = library_;
  all.insert(all.end(), evolved_.begin(), evolved_.end());
  Outcome outcome;
  std::mutex mutex;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    const c10::InferenceMode inference;
    const auto ops = make_reference_ops(weights);
    for (size_t i; (i = next.fetch_add(1)) < all.size();) {
      const auto& [share, q, body] = all[i];
      const Ranking right = rank(weights, *ops, Features::make(q.id, q.batch, q.length));
      const at::Tensor want = at::cat({right.features, right.logits.unsqueeze(1)}, 1).contiguous();
      const int64_t columns = want.size(1);
      double worst = 0;
      std::string first;
      try {
        const auto answer = nlohmann::json::parse(body);
        for (int64_t b = 0; b < q.batch; ++b)
          for (int64_t c = 0; c < columns; ++c) {
            const auto row = static_cast<size_t>(b);
            const double got = c + 1 < columns
                                   ? answer.at("features").at(row).at(static_cast<size_t>(c)).get<double>()
                                   : answer.at("logits").at(row).get<double>();
            const double target = want.data_ptr<double>()[b * columns + c];
            const double error = std::abs(got - target) / (kAbsolute + kRelative * std::abs(target));
            if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
            if (!(error <= 1) && first.empty())
              first = "value " + std::to_string(c) + " of candidate " + std::to_string(b) + ": " +
                      std::to_string(got) + " for " + std::to_string(target);
          }
      } catch (const nlohmann::json::exception& e) {
        worst = INFINITY;
        first = std::string("unreadable response: ") + e.what();
      }
      const std::lock_guard lock(mutex);
      ++outcome.checked;
      outcome.checked_evolved += share > 0 ? 1 : 0;
      outcome.worst = std::max(outcome.worst, worst);
      if (first.empty()) continue;
      ++outcome.wrong;
      if (outcome.first_wrong.empty())
        outcome.first_wrong = "request " + std::to_string(q.id) + " (batch " + std::to_string(q.batch) +
                              ", length " + std::to_string(q.length) + "), " + first;
    }
  };
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) pool.emplace_back(work);
  for (std::thread& t : pool) t.join();
  return outcome;
}

}  // namespace ranker
