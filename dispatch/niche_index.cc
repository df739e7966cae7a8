#include "dispatch/niche_index.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace niche::dispatch {
namespace {

Status check_region(const RegionSpec& spec) {
  const Definition& d = *spec.route->definition();
  const std::string where = "region '" + spec.route->label() + "' of " + d.name() + ": ";
  if (spec.box.var_count != static_cast<int>(d.var_axes().size()))
    return invalid(where + "the box has " + std::to_string(spec.box.var_count) + " axes, the definition " +
                   std::to_string(d.var_axes().size()));
  for (int i = 0; i < spec.box.var_count; ++i) {
    const Guard::Range& r = spec.box.var[static_cast<size_t>(i)];
    if (r.lo > r.hi || r.multiple_of < 1)
      return invalid(where + "axis " + std::to_string(i) + " holds nothing: [" + std::to_string(r.lo) + ", " +
                     std::to_string(r.hi) + "] multiple of " + std::to_string(r.multiple_of));
  }
  for (const Kernel* k : {spec.route->incumbent().get(), spec.route->challenger().get()}) {
    if (k != nullptr && !k->is_fallback() && !guard_inside(spec.box, k->guard))
      return invalid(where + "reaches beyond what kernel " + k->name + " was verified on");
  }
  if ((spec.prefix.tenant | spec.prefix.device | spec.prefix.threads) > 0xff)
    return unsupported(where + "tenant, device and threads above 255 have exact entries alone");
  return {};
}

NicheIndex::Region make_region(const RegionSpec& spec, uint64_t id) {
  NicheIndex::Region r;
  WideProblem p;
  p.prefix = spec.prefix;
  r.context = pack_key(p).context();
  r.box = spec.box;
  r.route = spec.route.get();
  r.id = id;
  r.priority = spec.priority;
  for (int i = 0; i < spec.box.var_count; ++i) {
    r.lo[i] = spec.box.var[static_cast<size_t>(i)].lo;
    r.hi[i] = spec.box.var[static_cast<size_t>(i)].hi;
  }
  return r;  // axes that the Definition does not have: [0, 0], and calls give 0
}

}  // namespace

bool guard_inside(const Guard& inner, const Guard& outer) {
  if (inner.var_count != outer.var_count) return false;
  for (int i = 0; i < inner.var_count; ++i) {
    const Guard::Range& a = inner.var[static_cast<size_t>(i)];
    const Guard::Range& b = outer.var[static_cast<size_t>(i)];
    if (a.lo < b.lo || a.hi > b.hi) return false;
    // A box with coarser steps is inside one with finer ones; a single value is inside where it is a
    // multiple.
    const bool steps = a.multiple_of % b.multiple_of == 0;
    const bool single = a.lo == a.hi && a.lo % b.multiple_of == 0;
    if (!steps && !single) return false;
  }
  return true;
}

size_t NicheIndex::size() const {
  size_t n = 0;
  for (const auto& d : by_definition_) n += d ? d->size() : 0;
  return n;
}

Result<std::shared_ptr<const NicheIndex>> NicheIndex::with(const NicheIndex& base, const RegionSpec& spec,
                                                           uint64_t id) {
  if (spec.route == nullptr) return invalid("region: no route");
  NICHE_RETURN_IF_ERROR(check_region(spec));
  const uint32_t d = spec.prefix.definition;
  const std::vector<Region>* old = base.of(d);
  if (old != nullptr && old->size() >= kRegionsMax)
    return busy("region '" + spec.route->label() + "': " + std::to_string(kRegionsMax) +
                " regions of definition " + std::to_string(d) + " already");
  auto regions = std::make_shared<std::vector<Region>>();
  if (old != nullptr) *regions = *old;
  const Region r = make_region(spec, id);
  const auto at = std::find_if(regions->begin(), regions->end(),
                               [&](const Region& x) { return x.priority < r.priority; });
  regions->insert(at, r);
  auto next = std::make_shared<NicheIndex>(base);
  if (next->by_definition_.size() <= d) next->by_definition_.resize(d + 1);
  next->by_definition_[d] = std::move(regions);
  return std::shared_ptr<const NicheIndex>(std::move(next));
}

std::shared_ptr<const NicheIndex> NicheIndex::without(const NicheIndex& base, uint64_t id) {
  auto next = std::make_shared<NicheIndex>(base);
  for (auto& d : next->by_definition_) {
    if (d == nullptr || std::none_of(d->begin(), d->end(), [&](const Region& r) { return r.id == id; }))
      continue;
    auto regions = std::make_shared<std::vector<Region>>(*d);
    std::erase_if(*regions, [&](const Region& r) { return r.id == id; });
    if (regions->empty()) {
      d = nullptr;
    } else {
      d = std::move(regions);
    }
  }
  return next;
}

}  // namespace niche::dispatch
