// Past 300 lines: checks, collecting, publishing and reclamation of one structure, all under one lock.
#include "dispatch/publisher.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "dispatch/table_writer.h"

namespace niche::dispatch {
namespace {

// Sends calls the long way (wide keys, workspace not reserved): no state has this number.
const std::atomic<uint32_t> kLongWayWord{7};

std::string describe(const WideProblem& p, const Definition* d) {
  std::string s = d != nullptr ? d->name() : "definition " + std::to_string(p.prefix.definition);
  const size_t n = d != nullptr ? d->var_axes().size() : kMaxVarAxes;
  for (size_t i = 0; i < n; ++i) s += (i == 0 ? " [" : ",") + std::to_string(p.axes[i]);
  return n > 0 ? s + "]" : s;
}

}  // namespace

class Publisher::Impl {
 public:
  Impl(EpochDomain* domain, const Clock* clock, const PublisherLimits& limits, Resolve resolve,
       std::function<uint32_t()> reserved)
      : domain_(domain),
        clock_(clock),
        limits_(limits),
        resolve_(std::move(resolve)),
        reserved_(std::move(reserved)) {
    niches_ = std::make_shared<const NicheIndex>();
    published_niches_ = niches_;
  }

  ~Impl() {
    for (Retired& r : retired_) release(r);
    if (published_ != nullptr) table_.recycle(published_);
  }

  Status put(const WideProblem& problem, std::shared_ptr<Route> route) {
    std::lock_guard lock(mutex_);
    NICHE_RETURN_IF_ERROR(check(problem, route.get()));
    const ProblemKey key = pack_key(problem);
    const bool known = entries_.count(key) != 0;
    if (!known && entries_.size() >= limits_.entries_max)
      return busy("table: entries_max " + std::to_string(limits_.entries_max) + " reached");
    NICHE_RETURN_IF_ERROR(mark_dirty(key));
    place(key, problem, std::move(route));
    return {};
  }

  Status check_placement(const Placement& p) const {
    std::lock_guard lock(mutex_);
    return check(p.problem, p.route.get());
  }

  Status room(size_t placements) {
    std::lock_guard lock(mutex_);
    if (retired_full()) collect();
    if (entries_.size() + placements > limits_.entries_max)
      return busy("table: entries_max " + std::to_string(limits_.entries_max) + " leaves no room for " +
                  std::to_string(placements) + " more");
    return retired_full() ? stalled() : Status();
  }

  void apply(std::span<const Placement> placements) {
    std::lock_guard lock(mutex_);
    for (const Placement& p : placements) {
      const ProblemKey key = pack_key(p.problem);
      dirty_.insert(key);
      place(key, p.problem, p.route);
    }
    publish();
  }

  Status erase(const WideProblem& problem) {
    std::lock_guard lock(mutex_);
    const auto it = entries_.find(pack_key(problem));
    return it == entries_.end() ? Status() : erase_entry(it->first);
  }

  Status replace_route(const Route& from, const std::shared_ptr<Route>& to) {
    std::lock_guard lock(mutex_);
    const std::vector<ProblemKey> keys = keys_of(from);
    if (to != nullptr)
      for (const ProblemKey& k : keys) NICHE_RETURN_IF_ERROR(check(problem_of(k), to.get()));
    // Regions first: they may refuse.
    std::shared_ptr<const NicheIndex> next = niches_;
    std::map<uint64_t, RegionSpec> regions = regions_;
    for (auto& [id, spec] : regions_) {
      if (spec.route.get() != &from) continue;
      next = NicheIndex::without(*next, id);
      regions.erase(id);
      if (to == nullptr) continue;
      RegionSpec changed = spec;
      changed.route = to;
      auto with = NicheIndex::with(*next, changed, id);
      if (!with) return with.status();
      next = *with;
      regions[id] = changed;
    }
    if (dirty_.size() + keys.size() > limits_.waiting_changes_max) return too_many();
    for (const ProblemKey& k : keys) {
      if (to == nullptr) {
        NICHE_RETURN_IF_ERROR(erase_entry(k));
        continue;
      }
      NICHE_RETURN_IF_ERROR(mark_dirty(k));
      Entry& e = entries_[k];
      drop(std::exchange(e.route, to));
      if (e.wide) {
        const WideProblem p = e.wide->problem;
        drop(std::shared_ptr<void>(std::move(e.wide)));
        e.wide = std::make_shared<WideEntry>(WideEntry{p, serving_kernel(*to)});
      }
    }
    for (auto& [id, spec] : regions_)
      if (spec.route.get() == &from) drop(spec.route);
    regions_ = std::move(regions);
    niches_ = std::move(next);
    return {};
  }

  Result<uint64_t> put_region(const RegionSpec& region) {
    std::lock_guard lock(mutex_);
    if (region.route == nullptr) return invalid("region: no route");
    const auto d = resolve_(region.prefix.definition);
    if (d == nullptr || d->name() != region.route->definition()->name())
      return invalid("region '" + region.route->label() + "': definition " +
                     std::to_string(region.prefix.definition) + " is not the route's " +
                     region.route->definition()->name());
    auto next = NicheIndex::with(*niches_, region, next_region_);
    if (!next) return next.status();
    niches_ = *next;
    regions_[next_region_] = region;
    return next_region_++;
  }

  Status erase_region(uint64_t id) {
    std::lock_guard lock(mutex_);
    const auto it = regions_.find(id);
    if (it == regions_.end()) return not_found("region " + std::to_string(id));
    niches_ = NicheIndex::without(*niches_, id);
    drop(std::move(it->second.route));
    regions_.erase(it);
    return {};
  }

  Status commit() {
    std::lock_guard lock(mutex_);
    return commit_locked();
  }

  void poll() {
    std::lock_guard lock(mutex_);
    collect();
    if (waiting_since_ns_ != 0) (void)commit_locked();
  }

  Status force(uint32_t definition, std::shared_ptr<const Kernel> kernel) {
    std::lock_guard lock(mutex_);
    const auto d = resolve_(definition);
    if (d == nullptr) return invalid("force: no definition " + std::to_string(definition));
    if (kernel != nullptr && kernel->definition->name() != d->name())
      return invalid("force: kernel " + kernel->name + " is not of definition " + d->name());
    for (const auto& [key, e] : entries_)
      if (key.definition() == definition) dirty_.insert(key);
    if (kernel == nullptr) {
      forced_.erase(definition);
    } else {
      forced_[definition] = std::move(kernel);
    }
    auto next = std::make_shared<Forced>();
    for (const auto& [def, k] : forced_) {
      if (next->by_definition.size() <= def) next->by_definition.resize(def + 1);
      next->by_definition[def] = k.get();
      next->holders.push_back(k);
    }
    next_forced_ = forced_.empty() ? nullptr : std::move(next);
    forced_dirty_ = true;
    return commit_locked();
  }

  Status set_mode(SnapshotMode mode) {
    std::lock_guard lock(mutex_);
    if (mode == mode_) return {};
    mode_ = mode;
    publish();  // never waits: shutting down must not depend on a stalled reader
    return {};
  }

  void retire(std::shared_ptr<void> holder, int64_t bytes) {
    std::lock_guard lock(mutex_);
    Retired r;
    r.tag = domain_->advance();
    r.bytes = bytes;
    r.holders.push_back(std::move(holder));
    retired_bytes_ += bytes;
    retired_.push_back(std::move(r));
  }

  std::shared_ptr<Route> find(const WideProblem& problem) const {
    std::lock_guard lock(mutex_);
    const auto it = entries_.find(pack_key(problem));
    return it == entries_.end() ? nullptr : it->second.route;
  }

  std::shared_ptr<Route> find_region(const WideProblem& problem) const {
    std::lock_guard lock(mutex_);
    const ProblemKey key = pack_key(problem);
    const auto* regions = key.wide() ? nullptr : niches_->of(key.definition());
    if (regions == nullptr) return nullptr;
    for (const NicheIndex::Region& r : *regions) {
      if (r.context != key.context() || !r.contains(problem.axes)) continue;
      const Kernel* k = r.route->incumbent().get();
      if (k != nullptr &&
          k->refuses(problem.prefix.constraints, problem.layout, problem.axes) != FallbackReason::kNone)
        continue;
      const auto it = regions_.find(r.id);
      return it == regions_.end() ? nullptr : it->second.route;
    }
    return nullptr;
  }

  PublisherStats stats() const {
    std::lock_guard lock(mutex_);
    PublisherStats s;
    s.version = version_;
    s.publications = publications_;
    s.coalesced = coalesced_;
    s.entries = entries_.size();
    s.regions = regions_.size();
    s.shards = table_.shards();
    s.retired_tables = retired_tables_;
    s.retired_bytes = retired_bytes_;
    s.waiting_changes = waiting_since_ns_ != 0 ? dirty_.size() + (niches_ != published_niches_ ? 1 : 0) : 0;
    s.waiting_ns = waiting_since_ns_ != 0 ? clock_->now_ns() - waiting_since_ns_ : 0;
    s.table_bytes = table_.table_bytes();
    return s;
  }

 private:
  struct Entry {
    std::shared_ptr<Route> route;
    std::shared_ptr<WideEntry> wide;
  };
  struct Forced {
    std::vector<const Kernel*> by_definition;
    std::vector<std::shared_ptr<const Kernel>> holders;
  };
  struct Retired {
    uint64_t tag = 0;
    int64_t bytes = 0;
    Snapshot* snapshot = nullptr;
    std::vector<TableShard*> shards;
    std::vector<std::shared_ptr<void>> holders;
  };

  static const Kernel* serving_kernel(const Route& r) {
    return r.incumbent() != nullptr ? r.incumbent().get() : r.fallback().get();
  }

  Status too_many() const {
    return busy("table: " + std::to_string(dirty_.size()) + " changes wait already (waiting_changes_max)");
  }

  Status mark_dirty(const ProblemKey& key) {
    if (dirty_.size() >= limits_.waiting_changes_max && dirty_.count(key) == 0) return too_many();
    dirty_.insert(key);
    return {};
  }

  void place(const ProblemKey& key, const WideProblem& problem, std::shared_ptr<Route> route) {
    Entry& e = entries_[key];
    drop(std::move(e.route));
    if (e.wide) drop(std::shared_ptr<void>(std::move(e.wide)));
    e.route = std::move(route);
    if (key.wide()) e.wide = std::make_shared<WideEntry>(WideEntry{problem, serving_kernel(*e.route)});
  }

  // By value: the key may be the map's own.
  Status erase_entry(const ProblemKey key) {
    NICHE_RETURN_IF_ERROR(mark_dirty(key));
    const auto it = entries_.find(key);
    drop(std::move(it->second.route));
    if (it->second.wide) drop(std::move(it->second.wide));
    entries_.erase(it);
    return {};
  }

  // Invariant 2.
  Status check(const WideProblem& p, const Route* route) const {
    if (route == nullptr) return invalid("table: no route");
    const auto d = resolve_(p.prefix.definition);
    if (d == nullptr) return invalid("table: no definition " + std::to_string(p.prefix.definition));
    if (d->name() != route->definition()->name())
      return invalid("table: route '" + route->label() + "' is of " + route->definition()->name() +
                     ", not of " + describe(p, d.get()));
    for (const Kernel* k : {route->incumbent().get(), route->challenger().get()}) {
      if (k == nullptr) continue;
      const FallbackReason r = k->refuses(p.prefix.constraints, p.layout, p.axes);
      if (r != FallbackReason::kNone)
        return invalid("table: kernel " + k->name + " cannot serve " + describe(p, d.get()) + ": " +
                       fallback_reason_name(r));
    }
    return {};
  }

  std::vector<ProblemKey> keys_of(const Route& r) const {
    std::vector<ProblemKey> keys;
    for (const auto& [key, e] : entries_)
      if (e.route.get() == &r) keys.push_back(key);
    return keys;
  }
  WideProblem problem_of(const ProblemKey& k) const {
    return k.wide() ? entries_.at(k).wide->problem : k.decode();
  }

  // Readers of the published Snapshot may still use it: it goes with the next publication.
  void drop(std::shared_ptr<void> holder) {
    if (holder != nullptr) dropped_.push_back(std::move(holder));
  }

  Status commit_locked() {
    if (dirty_.empty() && niches_ == published_niches_ && !forced_dirty_) return {};
    // Not before it is needed: each scan costs a membarrier.
    if (retired_full()) collect();
    if (retired_full()) {
      ++coalesced_;
      if (waiting_since_ns_ == 0) waiting_since_ns_ = std::max<int64_t>(clock_->now_ns(), 1);
      return stalled();
    }
    publish();
    return {};
  }

  bool retired_full() const {
    return retired_tables_ >= limits_.retired_tables_max || retired_bytes_ >= limits_.retired_bytes_max;
  }
  Status stalled() const {
    return busy("table: " + std::to_string(dirty_.size()) + " changes wait for a stalled reader (" +
                std::to_string(retired_tables_) + " tables, " + std::to_string(retired_bytes_) +
                " bytes retired)");
  }

  void write(const ProblemKey& key) {
    const auto it = entries_.find(key);
    if (it == entries_.end() || forced_.count(key.definition()) != 0) {
      table_.erase(key);
      return;
    }
    const Route& r = *it->second.route;
    const Kernel* k = serving_kernel(r);
    TableSlot slot;
    slot.key = key;
    slot.route = &r;
    slot.route_index = r.index();
    if (key.wide()) {
      slot.state = &kLongWayWord;
      slot.wide = it->second.wide.get();
    } else {
      slot.state =
          k->workspace_units == 0 || k->workspace_units <= reserved_() ? r.state_word() : &kLongWayWord;
      slot.kernel = k;
    }
    if (table_.upsert(slot)) return;
    drop(std::move(it->second.route));  // hash flooding: this problem stays on the fallback
    if (it->second.wide) drop(std::move(it->second.wide));
    entries_.erase(it);
  }

  void publish() {
    for (const ProblemKey& key : dirty_) write(key);
    dirty_.clear();
    Snapshot* next = table_.finish(++version_, mode_ == SnapshotMode::kServing);
    next->mode = mode_;
    next->niches = niches_.get();
    next->forced = next_forced_ != nullptr ? &next_forced_->by_definition : nullptr;

    Retired r;
    r.snapshot = std::exchange(published_, next);
    r.shards = table_.take_replaced();
    r.tag = domain_->publish(next);
    r.holders = std::exchange(dropped_, {});
    if (published_niches_ != niches_)
      r.holders.push_back(std::const_pointer_cast<NicheIndex>(published_niches_));
    if (forced_dirty_ && published_forced_ != nullptr) r.holders.push_back(published_forced_);
    published_niches_ = niches_;
    published_forced_ = next_forced_;
    forced_dirty_ = false;
    r.bytes = static_cast<int64_t>(r.shards.size() * sizeof(TableShard)) +
              (r.snapshot != nullptr ? TableWriter::bytes(*r.snapshot) : 0);
    retired_bytes_ += r.bytes;
    retired_tables_ += r.snapshot != nullptr ? 1 : 0;
    retired_.push_back(std::move(r));
    ++publications_;
    waiting_since_ns_ = 0;
    collect();
  }

  void collect() {
    if (retired_.empty()) return;
    const uint64_t oldest = domain_->oldest_active();
    while (!retired_.empty() && retired_.front().tag < oldest) {
      Retired r = std::move(retired_.front());
      retired_.pop_front();
      retired_bytes_ -= r.bytes;
      retired_tables_ -= r.snapshot != nullptr ? 1 : 0;
      release(r);
    }
  }

  void release(Retired& r) {
    if (r.snapshot != nullptr) table_.recycle(r.snapshot);
    for (TableShard* s : r.shards) table_.recycle(s);
    r.holders.clear();
  }

  mutable std::mutex mutex_;
  EpochDomain* const domain_;
  const Clock* const clock_;
  const PublisherLimits limits_;
  const Resolve resolve_;
  const std::function<uint32_t()> reserved_;

  // As the next publication will have it.
  std::unordered_map<ProblemKey, Entry, ProblemKeyHash> entries_;
  std::map<uint64_t, RegionSpec> regions_;
  std::shared_ptr<const NicheIndex> niches_;
  std::map<uint32_t, std::shared_ptr<const Kernel>> forced_;
  std::shared_ptr<Forced> next_forced_;
  SnapshotMode mode_ = SnapshotMode::kServing;
  uint64_t next_region_ = 1;
  // What differs from the published one.
  std::unordered_set<ProblemKey, ProblemKeyHash> dirty_;
  bool forced_dirty_ = false;
  std::vector<std::shared_ptr<void>> dropped_;
  int64_t waiting_since_ns_ = 0;

  TableWriter table_;
  Snapshot* published_ = nullptr;  // null: first_snapshot()
  std::shared_ptr<const NicheIndex> published_niches_;
  std::shared_ptr<Forced> published_forced_;
  uint64_t version_ = 1;
  std::deque<Retired> retired_;
  uint64_t retired_tables_ = 0;
  int64_t retired_bytes_ = 0;
  uint64_t publications_ = 0, coalesced_ = 0;
};

const Snapshot* Publisher::first_snapshot() {
  static const Snapshot s = empty_snapshot(1, SnapshotMode::kServing);
  return &s;
}

Publisher::Publisher(EpochDomain* domain, const Clock* clock, const PublisherLimits& limits, Resolve resolve,
                     std::function<uint32_t()> reserved)
    : impl_(std::make_unique<Impl>(domain, clock, limits, std::move(resolve), std::move(reserved))) {}
Publisher::~Publisher() = default;

Status Publisher::put(const WideProblem& problem, std::shared_ptr<Route> route) {
  return impl_->put(problem, std::move(route));
}
Status Publisher::check(const Placement& placement) const { return impl_->check_placement(placement); }
void Publisher::apply(std::span<const Placement> placements) { impl_->apply(placements); }
Status Publisher::room(size_t placements) { return impl_->room(placements); }
Status Publisher::erase(const WideProblem& problem) { return impl_->erase(problem); }
Status Publisher::replace_route(const Route& from, std::shared_ptr<Route> to) {
  return to == nullptr ? invalid("replace_route: no route") : impl_->replace_route(from, to);
}
Status Publisher::erase_route(const Route& route) { return impl_->replace_route(route, nullptr); }
Result<uint64_t> Publisher::put_region(const RegionSpec& region) { return impl_->put_region(region); }
Status Publisher::erase_region(uint64_t id) { return impl_->erase_region(id); }
Status Publisher::commit() { return impl_->commit(); }
void Publisher::poll() { impl_->poll(); }
Status Publisher::force(uint32_t definition, std::shared_ptr<const Kernel> kernel) {
  return impl_->force(definition, std::move(kernel));
}
Status Publisher::set_mode(SnapshotMode mode) { return impl_->set_mode(mode); }
void Publisher::retire(std::shared_ptr<void> holder, int64_t bytes) {
  impl_->retire(std::move(holder), bytes);
}
std::shared_ptr<Route> Publisher::find(const WideProblem& problem) const { return impl_->find(problem); }
std::shared_ptr<Route> Publisher::find_region(const WideProblem& problem) const {
  return impl_->find_region(problem);
}
PublisherStats Publisher::stats() const { return impl_->stats(); }

}  // namespace niche::dispatch
