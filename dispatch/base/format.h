// printf into a string of any length.
//
// Thread-safety: pure. Cost: an allocation, and formatting twice where the text has more than 255 bytes; not for the hot
// path.
#pragma once

#include <string>

namespace niche::dispatch {

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace niche::dispatch
