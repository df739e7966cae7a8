// The policies' constructors, one a file; make_policy (policy.h) is the way in. What each is, and why its
// constants are what they are, stands at the top of its file.
#pragma once

#include <memory>

#include "evolve/search/policy.h"

namespace niche::evolve::search {

std::unique_ptr<Policy> make_random(const SearchSpace& space, const PolicyOptions& options);
std::unique_ptr<Policy> make_greedy(const SearchSpace& space, const PolicyOptions& options);
std::unique_ptr<Policy> make_evolutionary(const SearchSpace& space, const PolicyOptions& options);
std::unique_ptr<Policy> make_uct(const SearchSpace& space, const PolicyOptions& options);
std::unique_ptr<Policy> make_surrogate(const SearchSpace& space, const PolicyOptions& options);
std::unique_ptr<Policy> make_portfolio(const SearchSpace& space, const PolicyOptions& options);

}  // namespace niche::evolve::search
