// Reads a kernel's source before the compiler does, and refuses what a kernel has no need of: reading files
// (#include, #embed, #pragma GCC dependency, ...), inline assembly with instructions, chosen sections,
// constructors.
//
// A filter with a named refusal, not the fence: the compiler runs confined and the binary is checked
// afterwards. Thread-safety: pure. Cost: one pass, about 10 ns a byte.
#pragma once

#include <string>
#include <string_view>

#include "dispatch/base/status.h"

namespace niche::evolve {

// kInvalid names what, and in which line. What is allowed: #define (without ##), #undef, conditionals without
// __has_include, #error, a few #pragmas, and asm whose template is the empty string (pins a register).
dispatch::Status check_source(std::string_view name, std::string_view text);

}  // namespace niche::evolve
