// nearest_name: turns a typing error into a helpful message.
//
// Thread-safety: a pure function. Cost: the product of the lengths, for each name.
#pragma once

#include <span>
#include <string_view>

namespace niche {

// The name with the smallest edit distance, of at most 3 and at most half of what was typed; empty: none is near.
std::string_view nearest_name(std::string_view typed, std::span<const std::string_view> names);

}  // namespace niche
