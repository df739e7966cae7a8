#include "dispatch/captured_graph.h"

#include <algorithm>
#include <utility>

#include "dispatch/publisher.h"

namespace niche::dispatch {
namespace {

constexpr const char* kReasonNames[] = {"replaced", "removed", "quarantined"};

bool quarantined(const std::atomic<uint32_t>& word) {
  // acquire: who sees the quarantine also sees why (pairs with Route::set_word).
  return RolloutWord::from_bits(word.load(std::memory_order_acquire)).state() == RolloutState::kQuarantined;
}

// What calls outside the graph get for this problem; null: the library.
const Kernel* serves_now(const Publisher& publisher, const WideProblem& problem,
                         std::shared_ptr<Route>* route) {
  *route = publisher.find(problem);
  if (*route == nullptr) *route = publisher.find_region(problem);
  if (*route == nullptr) return nullptr;
  const RolloutState s = (*route)->state();
  if (s == RolloutState::kQuarantined || s == RolloutState::kFallbackOnly) return nullptr;
  return (*route)->incumbent().get();
}

}  // namespace

const char* stale_reason_name(StaleReason r) { return kReasonNames[static_cast<int>(r)]; }

bool CapturedGraph::may_replay() const {
  // acquire, both: pair with watch().
  for (const Words* w = &words_; w != nullptr; w = w->next.load(std::memory_order_acquire)) {
    const uint32_t n = w->count.load(std::memory_order_acquire);
    for (uint32_t i = 0; i < n; ++i)
      if (quarantined(*w->of_routes[i])) return false;
  }
  return true;
}

// Under the lock.
void CapturedGraph::watch(const std::atomic<uint32_t>* word) {
  if (!watched_.insert(word).second) return;
  Words* last = more_words_.empty() ? &words_ : more_words_.back().get();
  uint32_t n = last->count.load(std::memory_order_relaxed);  // own lock
  if (n == Words::kPlaces) {
    more_words_.push_back(std::make_unique<Words>());
    Words* const next = more_words_.back().get();
    last->next.store(next, std::memory_order_release);  // release: pairs with may_replay()
    last = next;
    n = 0;
  }
  last->of_routes[n] = word;
  last->count.store(n + 1, std::memory_order_release);  // release: pairs with may_replay()
}

void CapturedGraph::restart() {
  std::lock_guard lock(mutex_);
  // relaxed: nobody looks meanwhile.
  words_.count.store(0, std::memory_order_relaxed);
  words_.next.store(nullptr, std::memory_order_relaxed);
  more_words_.clear();
  watched_.clear();
  held_.clear();
  uses_.clear();
  blocks_.clear();
  block_bytes_ = workspace_bytes_ = 0;
  told_.store(0, std::memory_order_relaxed);
}

std::vector<GraphUse> CapturedGraph::uses() const {
  std::lock_guard lock(mutex_);
  return uses_;
}

int64_t CapturedGraph::workspace_bytes() const {
  std::lock_guard lock(mutex_);
  return workspace_bytes_;
}

CapturedGraph::Workspace CapturedGraph::workspace() const {
  std::lock_guard lock(mutex_);
  return blocks_.empty() ? Workspace{} : Workspace{blocks_.back().get(), block_bytes_};
}

// Blocks are never given back: kernels that were captured before know where they are.
bool CapturedGraph::reserve(int64_t bytes) {
  if (bytes <= block_bytes_) return true;
  if (!options_.allocate) return false;
  auto block = options_.allocate(bytes);
  if (block == nullptr) return false;
  blocks_.push_back(std::move(block));
  block_bytes_ = bytes;
  workspace_bytes_ += bytes;
  return true;
}

FallbackReason CapturedGraph::hold(const WideProblem& problem, const ProblemKey& key,
                                   std::shared_ptr<const Route> route, std::shared_ptr<const Kernel> kernel) {
  if (kernel == nullptr) return FallbackReason::kNoKernel;
  std::lock_guard lock(mutex_);
  const Held use{key, route.get(), kernel.get()};
  if (held_.count(use) != 0) return FallbackReason::kNone;
  if (uses_.size() >= options_.uses_max) return FallbackReason::kGraphFull;
  if (!reserve(int64_t{64} * kernel->workspace_units)) return FallbackReason::kNoWorkspace;
  if (route != nullptr && kernel == route->incumbent()) watch(route->state_word());
  uses_.push_back({problem, std::move(route), std::move(kernel)});
  held_.insert(use);
  return FallbackReason::kNone;
}

Result<std::shared_ptr<CapturedGraph>> GraphRegistry::make(GraphOptions options) {
  std::lock_guard lock(mutex_);
  std::erase_if(graphs_, [](const auto& g) { return g.expired(); });
  if (graphs_.size() >= graphs_max_)
    return busy("graph '" + options.label + "': " + std::to_string(graphs_max_) +
                " graphs are alive already (graphs_max)");
  auto g = std::make_shared<CapturedGraph>(std::move(options));
  graphs_.push_back(g);
  return g;
}

std::vector<std::shared_ptr<CapturedGraph>> GraphRegistry::graphs() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<CapturedGraph>> alive;
  for (const auto& g : graphs_)
    if (auto held = g.lock()) alive.push_back(std::move(held));
  return alive;
}

size_t GraphRegistry::live() const { return graphs().size(); }

StaleGraph GraphRegistry::look(const std::shared_ptr<CapturedGraph>& g, const Publisher& publisher) {
  StaleGraph stale{g, {}};
  for (const GraphUse& use : g->uses()) {
    StaleUse s{use.problem, use.kernel->name, "", StaleReason::kReplaced};
    std::shared_ptr<Route> route;
    const Kernel* now = serves_now(publisher, use.problem, &route);
    const bool bad = use.route != nullptr && use.kernel == use.route->incumbent() &&
                     !use.kernel->is_fallback() && quarantined(*use.route->state_word());
    if (bad) {
      s.reason = StaleReason::kQuarantined;
    } else if (now == use.kernel.get() || (now == nullptr && use.kernel->is_fallback())) {
      continue;
    } else if (now == nullptr) {
      s.reason = StaleReason::kRemoved;
    }
    s.serves_now = now != nullptr ? now->name : route != nullptr ? route->fallback()->name : "the library";
    stale.uses.push_back(std::move(s));
  }
  return stale;
}

std::vector<StaleGraph> GraphRegistry::stale(const Publisher& publisher, const std::string& owner) const {
  std::vector<StaleGraph> all;
  for (const auto& g : graphs()) {
    if (!owner.empty() && g->owner() != owner) continue;
    StaleGraph s = look(g, publisher);
    if (!s.uses.empty()) all.push_back(std::move(s));
  }
  return all;
}

void GraphRegistry::poll(const Publisher& publisher) {
  for (const auto& g : graphs()) {
    if (!g->options_.on_stale) continue;
    const StaleGraph s = look(g, publisher);
    uint64_t news = 0;
    for (const StaleUse& u : s.uses)
      news = mix64(news ^ hash_bytes(u.kernel + '>' + u.serves_now + stale_reason_name(u.reason)) ^
                   pack_key(u.problem).hash());
    if (news == g->told_.exchange(news, std::memory_order_relaxed)) continue;
    if (!s.uses.empty()) g->options_.on_stale(s);
  }
}

}  // namespace niche::dispatch
