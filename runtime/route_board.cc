#include "runtime/route_board.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace niche::core {

using dispatch::Kernel;
using dispatch::RolloutState;
using dispatch::Route;
using dispatch::Rung;
using dispatch::Status;
using dispatch::WideProblem;

namespace {

constexpr int kClassBits = 6;             // 2^62 is the largest power of four that an axis can pass
constexpr size_t kFormRegionsMax = 32;    // half of a Definition's regions
constexpr double kChallengerGain = 1.02;  // a challenger promises at least so much more than the incumbent

int power_of_four(int64_t v) { return v < 1 ? 0 : (63 - __builtin_clzll(static_cast<uint64_t>(v))) / 2; }

}  // namespace

uint64_t form_class(const int64_t* var_axes, int count) {
  uint64_t c = 0;
  for (int i = 0; i < count; ++i) c = c << kClassBits | static_cast<uint64_t>(power_of_four(var_axes[i]));
  return c;
}

dispatch::Guard form_box(uint64_t form_class, int count) {
  dispatch::Guard g;
  g.var_count = count;
  for (int i = count - 1; i >= 0; --i, form_class >>= kClassBits) {
    const int power = static_cast<int>(form_class & ((1u << kClassBits) - 1));
    const int64_t lo = int64_t{1} << (2 * power);
    g.var[static_cast<size_t>(i)] = {power == 0 ? 0 : lo, power == 30 ? INT64_MAX : 4 * lo - 1, 1};
  }
  return g;
}

RouteBoard::RouteBoard(dispatch::Dispatcher& dispatcher, uint32_t definition, uint32_t threads,
                       uint32_t device)
    : dispatcher_(dispatcher),
      definition_(definition),
      prefix_{definition, 0, device, threads, {}},
      axes_(static_cast<int>(dispatcher.definition(definition)->var_axes().size())) {}

RouteBoard::~RouteBoard() = default;

void RouteBoard::add_serving(std::shared_ptr<const ResidentKernel> kernel) {
  remove(kernel->id());
  changed_ = true;
  serving_.push_back(std::move(kernel));
  // Regions are tried in this order: where Guards overlap an unseen shape takes the better kernel.
  std::stable_sort(serving_.begin(), serving_.end(), [](const auto& a, const auto& b) {
    return a->fallback_ns * b->kernel_ns > b->fallback_ns * a->kernel_ns;
  });
}

void RouteBoard::set_challenger(std::shared_ptr<const ResidentKernel> kernel) {
  challenger_ = std::move(kernel);
  changed_ = true;
  rollout_ = RolloutState::kShadow;
  share_ = 0;
}

void RouteBoard::remove(uint64_t id) {
  changed_ = true;
  std::erase_if(serving_, [&](const auto& k) { return k->id() == id; });
  if (challenges(id)) challenger_.reset();
}

bool RouteBoard::serves(uint64_t id) const {
  return std::any_of(serving_.begin(), serving_.end(), [&](const auto& k) { return k->id() == id; });
}

bool RouteBoard::see(const WideProblem& problem, int64_t now_ns) {
  const auto [at, fresh] = problems_.try_emplace(pack_key(problem), Seen{problem, now_ns, nullptr, false});
  at->second.last_ns = now_ns;
  if (fresh) fresh_.push_back(at->first);
  const bool first = !std::exchange(at->second.live, true);
  if (first) ++sightings_;
  if (!fresh || problems_.size() <= kProblemsMax) return first;
  // Full: the eighth that was not seen for longest gives way.
  std::vector<std::pair<int64_t, dispatch::ProblemKey>> by_age;
  for (const auto& [key, seen] : problems_) by_age.emplace_back(seen.last_ns, key);
  const auto cut = by_age.begin() + static_cast<std::ptrdiff_t>(by_age.size() / 8);
  std::nth_element(by_age.begin(), cut, by_age.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto it = by_age.begin(); it != cut; ++it) {
    const auto old = problems_.find(it->second);
    (void)dispatcher_.publisher().erase(old->second.problem);
    problems_.erase(old);
  }
  return true;
}

void RouteBoard::recall(const WideProblem& problem, int64_t last_ns) {
  if (problems_.size() >= kProblemsMax) return;
  const auto [at, fresh] = problems_.try_emplace(pack_key(problem), Seen{problem, last_ns, nullptr, false});
  if (fresh) fresh_.push_back(at->first);
}

std::vector<RouteBoard::Sighting> RouteBoard::seen() const {
  std::vector<Sighting> all;
  for (const auto& [key, seen] : problems_) all.push_back({seen.problem, seen.last_ns});
  std::sort(all.begin(), all.end(),
            [](const Sighting& a, const Sighting& b) { return a.last_ns > b.last_ns; });
  return all;
}

void RouteBoard::set_form(uint64_t c, std::shared_ptr<const Kernel> form) {
  forms_[c] = std::move(form);
  changed_ = true;
}

std::shared_ptr<const Kernel> RouteBoard::form(uint64_t c) const {
  const auto at = forms_.find(c);
  return at != forms_.end() ? at->second : dispatcher_.fallback(definition_, 0);
}

bool RouteBoard::fits(const ResidentKernel& k, const WideProblem& p) const {
  return k.kernel->refuses(p.prefix.constraints, p.layout, p.axes) == dispatch::FallbackReason::kNone;
}

std::shared_ptr<const ResidentKernel> RouteBoard::best_serving(const WideProblem& p) const {
  const bool measured = std::any_of(serving_.begin(), serving_.end(),
                                    [&](const auto& k) { return k->measured_at(p.axes, axes_); });
  if (!measured)
    for (const MeasuredRegion& r : measured_regions_)
      if (r.box.holds_var(p.axes) && (r.kernel == nullptr || fits(*r.kernel, p))) return r.kernel;
  std::shared_ptr<const ResidentKernel> best;
  double best_gain = 1.0;
  for (const auto& k : serving_) {
    if (!fits(*k, p)) continue;
    const double gain = k->gain(p.axes, axes_);
    if (gain > best_gain) best_gain = gain, best = k;
  }
  return best;
}

RouteBoard::Choice RouteBoard::choose(const WideProblem& p) const {
  Choice c;
  c.fallback = form(form_class(p.axes, axes_));
  c.incumbent = best_serving(p);
  if (challenger_ && fits(*challenger_, p)) {
    const double gain = challenger_->gain(p.axes, axes_);
    const double bar = c.incumbent ? c.incumbent->gain(p.axes, axes_) * kChallengerGain : 1.0;
    if (gain > bar) c.challenger = challenger_;
  }
  return c;
}

dispatch::Result<std::shared_ptr<Route>> RouteBoard::route_for(const Choice& c) {
  const Key key{c.incumbent ? c.incumbent->id() : 0, c.challenger ? c.challenger->id() : 0, c.fallback->id};
  const auto at = routes_.find(key);
  if (at != routes_.end()) return at->second;
  Route::Spec spec;
  spec.definition = c.fallback->definition;
  spec.fallback = c.fallback;
  if (c.incumbent) spec.incumbent = c.incumbent->kernel;
  if (c.challenger) spec.challenger = c.challenger->kernel;
  spec.state = c.challenger ? rollout_ : c.incumbent ? RolloutState::kIncumbent : RolloutState::kFallbackOnly;
  spec.share = c.challenger ? share_ : 0;
  spec.label = c.challenger  ? c.challenger->ref.kernel
               : c.incumbent ? c.incumbent->ref.kernel
                             : c.fallback->name;
  auto route = dispatcher_.make_route(std::move(spec));
  if (route.ok()) routes_[key] = *route;
  return route;
}

Status RouteBoard::publish_problem(Seen& seen) {
  auto route = route_for(choose(seen.problem));
  if (!route.ok()) return route.status();
  if (seen.published == route->get()) return {};
  NICHE_RETURN_IF_ERROR(dispatcher_.publisher().put(seen.problem, *route));
  seen.published = route->get();
  return {};
}

Status RouteBoard::publish() {
  Status first;
  const auto keep_first = [&](Status s) {
    if (first.ok() && !s.ok()) first = std::move(s);
  };
  std::vector<dispatch::ProblemKey> failed;  // the next publish() tries them again
  if (changed_) {
    measured_regions_ = draw_measured_regions(serving_, axes_);
    for (auto& [key, seen] : problems_) keep_first(publish_problem(seen));
    keep_first(publish_regions());
    forget_unused_routes();
    changed_ = !first.ok();
  } else {
    for (const dispatch::ProblemKey& key : fresh_) {
      const auto at = problems_.find(key);
      if (at == problems_.end()) continue;
      Status s = publish_problem(at->second);
      if (!s.ok()) failed.push_back(key);
      keep_first(std::move(s));
    }
  }
  fresh_ = std::move(failed);
  keep_first(dispatcher_.publisher().commit());
  return first;
}

Status RouteBoard::publish_regions() {
  dispatch::Publisher& publisher = dispatcher_.publisher();
  for (uint64_t id : regions_) NICHE_RETURN_IF_ERROR(publisher.erase_region(id));
  regions_.clear();
  const auto put = [&](const dispatch::Guard& box, const Choice& choice, int priority) -> Status {
    auto route = route_for(choice);
    if (!route.ok()) return route.status();
    auto id = publisher.put_region({prefix_, box, *route, priority});
    if (id.ok()) regions_.push_back(*id);
    return id.status();
  };
  const auto library = dispatcher_.fallback(definition_, 0);
  int priority = static_cast<int>(serving_.size()) + 1;
  int measured_priority = priority + kMeasuredRegionsMax;
  for (const MeasuredRegion& r : measured_regions_) {
    int64_t corner[dispatch::kMaxVarAxes] = {};
    for (int i = 0; i < axes_; ++i) corner[i] = r.box.var[static_cast<size_t>(i)].lo;
    NICHE_RETURN_IF_ERROR(
        put(r.box, {r.kernel, nullptr, form(form_class(corner, axes_))}, measured_priority--));
  }
  for (const auto& k : serving_) {
    const int own = priority--;
    if (k->reaches_far()) NICHE_RETURN_IF_ERROR(put(k->kernel->guard, {k, nullptr, library}, own));
  }
  if (challenger_ && challenger_->reaches_far())
    NICHE_RETURN_IF_ERROR(put(challenger_->kernel->guard, {nullptr, challenger_, library}, 0));
  size_t form_regions = 0;
  for (const auto& [c, kernel] : forms_) {
    if (kernel->fallback_form == 0 || form_regions++ == kFormRegionsMax) continue;
    NICHE_RETURN_IF_ERROR(put(form_box(c, axes_), {nullptr, nullptr, kernel}, -1));
  }
  return {};
}

// Routes that no entry or region names any more. Regions were just published from routes_: a region's route
// is one whose kernels are on the board.
void RouteBoard::forget_unused_routes() {
  std::unordered_set<const Route*> used;
  for (const auto& [key, seen] : problems_) used.insert(seen.published);
  const auto on_board = [&](uint64_t id) {
    return id == 0 || (challenger_ && id == challenger_->id()) ||
           std::any_of(serving_.begin(), serving_.end(), [&](const auto& s) { return s->id() == id; });
  };
  for (auto at = routes_.begin(); at != routes_.end();) {
    const auto& [key, route] = *at;
    if (used.count(route.get()) != 0 || (on_board(key.incumbent) && on_board(key.challenger))) {
      ++at;
      continue;
    }
    const dispatch::RouteCounts n = dispatcher_.counts(*route);
    const auto calls = [&](Rung r) { return n.by_rung[static_cast<int>(r)]; };
    if (route->incumbent())
      calls_before_[route->incumbent()->id] +=
          calls(Rung::kExact) + calls(Rung::kRegion) + calls(Rung::kControl);
    if (route->challenger()) calls_before_[route->challenger()->id] += calls(Rung::kCanary);
    at = routes_.erase(at);
  }
}

void RouteBoard::set_rollout(RolloutState state, double share) {
  rollout_ = state;
  share_ = share;
  for (const auto& [key, route] : routes_)
    if (challenger_ && key.challenger == challenger_->id()) (void)route->set_state(state, share);
}

Status RouteBoard::withdraw(uint64_t id) {
  for (const auto& [key, route] : routes_) {
    if (key.incumbent == id)
      route->quarantine();
    else if (key.challenger == id)
      route->roll_back();
  }
  remove(id);
  return publish();
}

uint64_t RouteBoard::calls_of(uint64_t id) const {
  const auto before = calls_before_.find(id);
  uint64_t calls = before == calls_before_.end() ? 0 : before->second;
  for (const auto& [key, route] : routes_) {
    const bool incumbent = key.incumbent == id, challenger = key.challenger == id;
    if (!incumbent && !challenger) continue;
    const dispatch::RouteCounts n = dispatcher_.counts(*route);
    const auto of = [&](Rung r) { return n.by_rung[static_cast<int>(r)]; };
    calls += incumbent ? of(Rung::kExact) + of(Rung::kRegion) + of(Rung::kControl) : of(Rung::kCanary);
  }
  return calls;
}

}  // namespace niche::core
