#include "dispatch/op_spec.h"

namespace niche::dispatch {

Status OpRegistry::add(std::shared_ptr<const OpSpec> op) {
  NICHE_RETURN_IF_ERROR(op->schema()->validate());
  if (find(op->schema()->op)) return busy("operator '" + op->schema()->op + "' is registered already");
  if (op->fallback_count() < 1) return invalid("operator '" + op->schema()->op + "' has no fallback");
  ops_.push_back(std::move(op));
  return {};
}

const OpSpec* OpRegistry::find(std::string_view op) const {
  for (const auto& o : ops_)
    if (o->schema()->op == op) return o.get();
  return nullptr;
}

std::shared_ptr<const OpSpec> OpRegistry::find_shared(std::string_view op) const {
  for (const auto& o : ops_)
    if (o->schema()->op == op) return o;
  return nullptr;
}

}  // namespace niche::dispatch
