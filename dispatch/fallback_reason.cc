#include "dispatch/fallback_reason.h"

#include <cstddef>

namespace niche::dispatch {
namespace {
constexpr const char* kRungNames[] = {"exact", "region", "canary", "control", "fallback", "forced"};
constexpr const char* kReasonNames[] = {
    "none",         "miss",           "no_kernel",     "guard",          "constraint",      "layout",
    "no_workspace", "not_packed",     "disabled",      "rolled_back",    "capture_unknown", "forked",
    "shutdown",     "thread_exiting", "thread_limit",  "requires_grad",  "subclass",        "functorch",
    "sparse",       "quantized",      "conjugate",     "foreign_device", "dtype",           "forced",
    "probation",    "graph_full",     "device_refused"};
static_assert(sizeof(kRungNames) / sizeof(*kRungNames) == kRungCount);
static_assert(sizeof(kReasonNames) / sizeof(*kReasonNames) == kFallbackReasonCount);
}  // namespace

const char* rung_name(Rung rung) {
  const auto i = static_cast<size_t>(rung);
  return i < kRungCount ? kRungNames[i] : "?";
}
const char* fallback_reason_name(FallbackReason reason) {
  const auto i = static_cast<size_t>(reason);
  return i < kFallbackReasonCount ? kReasonNames[i] : "?";
}

}  // namespace niche::dispatch
