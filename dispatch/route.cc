#include "dispatch/route.h"

#include <utility>

#include "dispatch/route_index_pool.h"

namespace niche::dispatch {
namespace {

constexpr const char* kStateNames[] = {"fallback_only", "shadow",      "canary",
                                       "incumbent",     "rolled_back", "quarantined"};
static_assert(sizeof(kStateNames) / sizeof(*kStateNames) == kRolloutStateCount);

Status check_state(const Route::Spec& spec, RolloutState state) {
  const bool wants_challenger = state == RolloutState::kShadow || state == RolloutState::kCanary;
  if (wants_challenger && spec.challenger == nullptr)
    return invalid("route '" + spec.label + "': state " + rollout_state_name(state) +
                   " without a challenger");
  if (state == RolloutState::kIncumbent && spec.incumbent == nullptr)
    return invalid("route '" + spec.label + "': state incumbent without an incumbent");
  return {};
}

}  // namespace

const char* rollout_state_name(RolloutState s) {
  const auto i = static_cast<size_t>(s);
  return i < kRolloutStateCount ? kStateNames[i] : "?";
}

Result<uint32_t> RouteIndexPool::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!ensure_) return busy("routes: the dispatcher is closed");
  if (!free_.empty()) {
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  if (next_ >= max_) return busy("routes: all " + std::to_string(max_) + " are taken (routes_max)");
  if (next_ / kChunkRoutes >= rows_.size()) rows_.push_back(std::make_unique<Row>());
  NICHE_RETURN_IF_ERROR(ensure_(next_ + 1));
  return next_++;
}

void RouteIndexPool::give(uint32_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(index);
}

std::atomic<uint32_t>* RouteIndexPool::word(uint32_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  return &rows_[index / kChunkRoutes]->words[index % kChunkRoutes];
}

void RouteIndexPool::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  ensure_ = nullptr;
}

Result<std::shared_ptr<Route>> Route::make(std::shared_ptr<RouteIndexPool> pool, Spec spec) {
  if (spec.definition == nullptr) return invalid("route '" + spec.label + "': no definition");
  if (spec.fallback == nullptr) return invalid("route '" + spec.label + "': no fallback");
  for (const Kernel* k : {spec.fallback.get(), spec.incumbent.get(), spec.challenger.get()}) {
    if (k != nullptr && (k->definition == nullptr || k->definition->name() != spec.definition->name()))
      return invalid("route '" + spec.label + "': kernel " + k->name + " is not of definition " +
                     spec.definition->name());
  }
  NICHE_RETURN_IF_ERROR(check_state(spec, spec.state));
  Result<uint32_t> index = pool->take();
  if (!index) return index.status();
  return std::shared_ptr<Route>(new Route(std::move(pool), std::move(spec), *index));
}

Route::Route(std::shared_ptr<RouteIndexPool> pool, Spec spec, uint32_t index)
    : state_(pool->word(index)), spec_(std::move(spec)), pool_(std::move(pool)) {
  static std::atomic<uint64_t> made{0};
  const uint64_t salt = mix64(made.fetch_add(1, std::memory_order_relaxed) + 0x9e3779b97f4a7c15ULL);
  arms_ = {spec_.fallback.get(), spec_.incumbent.get(), spec_.challenger.get(), salt, state_, index};
  set_word(spec_.state, spec_.share);
}

Route::~Route() { pool_->give(index()); }

Status Route::set_state(RolloutState s, double share) {
  NICHE_RETURN_IF_ERROR(check_state(spec_, s));
  set_word(s, share);
  return {};
}

void Route::set_word(RolloutState s, double share) {
  // release: who sees the new state also sees what its setter did before (a mark on disk, say). Readers of
  // the hot path load it relaxed: all they reach through the Route was published with the table.
  state_->store(RolloutWord::make(s, share).bits(), std::memory_order_release);
}

}  // namespace niche::dispatch
