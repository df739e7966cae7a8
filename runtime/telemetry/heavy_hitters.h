// HeavyHitters: the keys with the largest decayed weight out of an unbounded stream, in bounded memory.
//
// Weighted Space-Saving (Metwally, Agrawal, El Abbadi, 2005): a key that is not held replaces the lightest
// one and inherits its weight as error, so that estimate - error <= true weight <= estimate, and every key
// whose true weight is above total / capacity is held. Decay is forward (Cormode et al., 2009): weights grow
// with time instead of all counters shrinking, so that time costs nothing; a rescale every 40 half-lives
// keeps them finite.
//
// Use the lower bound (`guaranteed`) for ranking: a million keys that were each seen once chase each other
// through the lightest counter, and all that weight is its error.
//
// Thread-safety: one owner. Cost: about 100 ns an update (one hash probe, a heap of log2(capacity) steps), no
// allocation after the table is full. Why not a count-min sketch: it answers "how heavy is this key", not
// "which keys are heavy".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace niche::telemetry {

// Forward decay: a weight counted at `at_ns` is worth exp2((at - origin) / half_life) in stored units.
class ForwardDecay {
 public:
  explicit ForwardDecay(int64_t half_life_ns) : half_life_ns_(static_cast<double>(half_life_ns)) {}
  // Moves time on; never backwards. Returns the factor to multiply every stored weight by (1 unless
  // rescaled).
  double advance(int64_t now_ns) {
    if (!started_) origin_ns_ = now_ns_ = now_ns, started_ = true;
    now_ns_ = std::max(now_ns_, now_ns);
    const double halvings = static_cast<double>(now_ns_ - origin_ns_) / half_life_ns_;
    if (halvings < kRescaleHalvings) return 1;
    origin_ns_ = now_ns_;
    return std::exp2(-halvings);
  }
  double stored_per_unit() const {
    return std::exp2(static_cast<double>(now_ns_ - origin_ns_) / half_life_ns_);
  }
  // Rate per ns of a stream whose decayed sum is `stored`: a steady rate r gives the sum r * half_life /
  // ln 2.
  double rate_of(double stored) const {
    return stored / stored_per_unit() * 0.69314718055994531 / half_life_ns_;
  }
  int64_t now_ns() const { return now_ns_; }

 private:
  static constexpr double kRescaleHalvings = 40;
  double half_life_ns_;
  int64_t origin_ns_ = 0, now_ns_ = 0;
  bool started_ = false;
};

// `Info` is what is kept beside a key; a key that replaces another starts with a fresh Info.
template <typename Key, typename Hash, typename Info>
class HeavyHitters {
 public:
  struct Entry {
    Key key;
    double estimate = 0;  // stored units
    double error = 0;
    Info info{};
    double guaranteed() const { return estimate - error; }
  };

  explicit HeavyHitters(size_t capacity) : capacity_(std::max<size_t>(capacity, 1)) {
    heap_.reserve(capacity_);
    where_.reserve(capacity_);
  }

  // `weight` in stored units, >= 0. Returns the key's Info, to be updated at once.
  Info& add(const Key& key, double weight) {
    total_ += weight;
    if (const auto it = where_.find(key); it != where_.end()) {
      const size_t at = it->second;
      heap_[at].estimate += weight;
      return heap_[sift_down(at)].info;
    }
    if (heap_.size() < capacity_) {
      heap_.push_back({key, weight, 0, Info{}});
      where_.emplace(key, heap_.size() - 1);
      return heap_[sift_up(heap_.size() - 1)].info;
    }
    Entry& lightest = heap_[0];
    auto node = where_.extract(lightest.key);  // the node is used again: no allocation
    node.key() = key;
    node.mapped() = 0;
    where_.insert(std::move(node));
    lightest = {key, lightest.estimate + weight, lightest.estimate, Info{}};
    ++replaced_;
    return heap_[sift_down(0)].info;
  }

  void scale(double factor) {
    if (factor == 1) return;
    total_ *= factor;
    for (Entry& e : heap_) e.estimate *= factor, e.error *= factor;
  }

  // In no order.
  const std::vector<Entry>& entries() const { return heap_; }
  std::vector<Entry>& entries() { return heap_; }
  double total() const { return total_; }
  size_t capacity() const { return capacity_; }
  uint64_t replaced() const { return replaced_; }

 private:
  // A binary min-heap by estimate; where_ follows every move.
  size_t sift_up(size_t at) {
    while (at > 0) {
      const size_t parent = (at - 1) / 2;
      if (heap_[parent].estimate <= heap_[at].estimate) break;
      swap_entries(at, parent);
      at = parent;
    }
    return at;
  }
  size_t sift_down(size_t at) {
    for (;;) {
      size_t least = at;
      for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < heap_.size(); ++child)
        if (heap_[child].estimate < heap_[least].estimate) least = child;
      if (least == at) return at;
      swap_entries(at, least);
      at = least;
    }
  }
  void swap_entries(size_t a, size_t b) {
    std::swap(heap_[a], heap_[b]);
    where_[heap_[a].key] = a;
    where_[heap_[b].key] = b;
  }

  size_t capacity_;
  std::vector<Entry> heap_;
  std::unordered_map<Key, size_t, Hash> where_;
  double total_ = 0;
  uint64_t replaced_ = 0;
};

}  // namespace niche::telemetry
