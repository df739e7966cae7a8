#include "evolve/search/policy.h"

#include <array>

#include "evolve/search/policies.h"

namespace niche::evolve::search {
namespace {

struct Row {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(const SearchSpace&, const PolicyOptions&);
};
constexpr std::array<Row, 6> kPolicies{{{"default", make_portfolio},
                                        {"random", make_random},
                                        {"greedy", make_greedy},
                                        {"evolutionary", make_evolutionary},
                                        {"uct", make_uct},
                                        {"surrogate", make_surrogate}}};

}  // namespace

dispatch::Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const SearchSpace& space,
                                                      const PolicyOptions& options) {
  std::string known;
  for (const Row& row : kPolicies) {
    if (row.name == name) return row.make(space, options);
    known += ' ' + std::string(row.name);
  }
  return dispatch::not_found("no search policy '" + std::string(name) + "'; known:" + known);
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const Row& row : kPolicies) names.emplace_back(row.name);
  return names;
}

}  // namespace niche::evolve::search
