#include "evolve/judge/pair_verdict.h"

#include <algorithm>

namespace niche::evolve::judge {
namespace {

constexpr int kFutilePairs = 48;  // from here on an interval below the margin ends a problem
constexpr double kQuietShare = 0.25;

double lower_quartile(std::vector<double> v) {
  if (v.empty()) return 0;
  const auto at = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 4);
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

}  // namespace

ClaimedTimes PairVerdict::claimed(bool cold) const {
  return {lower_quartile(fallback_), lower_quartile(kernel_), cold};
}

bool PairVerdict::all_count(std::span<const PairSample> pairs) {
  const auto quiet = std::count_if(pairs.begin(), pairs.end(), [](auto& x) { return !x.dropped; });
  return static_cast<double>(quiet) < kQuietShare * static_cast<double>(pairs.size());
}

VerdictStatus PairVerdict::add(std::span<const PairSample> pairs) {
  all_.insert(all_.end(), pairs.begin(), pairs.end());
  const bool use_all = all_count(all_);
  fallback_.clear();
  kernel_.clear();
  test_ = SignTest(margin_);
  for (const PairSample& x : all_) {
    if (x.dropped && !use_all) continue;
    fallback_.push_back(x.fallback_ns), kernel_.push_back(x.kernel_ns);
    test_.add(x.fallback_ns, x.kernel_ns);
  }
  status_ = VerdictStatus::kAmbiguous;
  if (test_.e_faster() >= e_stop_) status_ = VerdictStatus::kFaster;
  if (test_.e_slower() >= kSlowerEvidence) status_ = VerdictStatus::kNotFaster;
  if (status_ == VerdictStatus::kAmbiguous && this->pairs() < kFutilePairs) return status_;
  interval_ = bootstrap_ratio(fallback_, kernel_, seed_, status_ == VerdictStatus::kAmbiguous ? 200 : 2000);
  if (status_ == VerdictStatus::kAmbiguous && interval_.high < 1 + margin_)
    status_ = VerdictStatus::kNotFaster;
  return status_;
}

}  // namespace niche::evolve::judge
