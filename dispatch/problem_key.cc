#include "dispatch/problem_key.h"

namespace niche::dispatch {

ProblemKey pack_wide_key(const KeyPrefix& prefix, ConstraintSet constraints, LayoutClass layout,
                         const int64_t* axes) {
  const uint64_t parts[] = {uint64_t{prefix.definition} << 32 | prefix.tenant,
                            uint64_t{prefix.device} << 32 | prefix.threads,
                            uint64_t{constraints.bits()},
                            layout.bits(),
                            static_cast<uint64_t>(axes[0]),
                            static_cast<uint64_t>(axes[1]),
                            static_cast<uint64_t>(axes[2]),
                            static_cast<uint64_t>(axes[3]),
                            static_cast<uint64_t>(axes[4])};
  uint64_t a = 0x2d358dccaa6c78a5ULL, b = 0x8bb84b93962eacc9ULL;
  for (const uint64_t v : parts) {
    a = mix64(a ^ v) + 0x9e3779b97f4a7c15ULL;
    b = mix64(b + v * 0xd1342543de82ef95ULL) ^ 0x4b33a62ed433d4a3ULL;
  }
  // Tenant, device and threads live in the hash alone: half of a number would help nobody.
  return {prefix.definition | layout.bits() << 24,
          static_cast<uint64_t>(constraints.bits()) << 24 | ProblemKey::kWideBit, a, b};
}

}  // namespace niche::dispatch
