// Warm start: the best points of earlier sessions on the nearest problems of the same operator, type and
// architecture.
//
// Distance: the root mean square of |ln a - ln b| over constant axes and (traffic-weighted, each problem to
// its nearest) variable axes, plus 1 for each attribute that differs. Thread-safety: pure functions.
#pragma once

#include <vector>

#include "evolve/search/space.h"
#include "evolve/store/rows.h"
#include "evolve/worker_client.h"

namespace niche::evolve {

struct WarmStartOptions {
  int sessions = 3;     // nearest sessions to draw from
  int per_session = 3;  // points of each
  int points_max = 8;
};

// Best first: verified before screened, nearer before farther. `past` as Store::past_bests gives it.
std::vector<search::FamilyPoint> warm_start(const search::SearchSpace& space,
                                            const std::string& definition_json,
                                            const std::vector<SeenProblem>& problems,
                                            const std::vector<store::PastBest>& past,
                                            const WarmStartOptions& options = {});

// The session whose evaluations may stand as a prior (PolicyOptions::past): the nearest one that is near enough, that is,
// whose sizes are within a factor of e on average; the newest of equally near ones. Empty: none.
inline constexpr double kNearEnough = 1.0;
std::string nearest_session(const std::string& definition_json, const std::vector<SeenProblem>& problems,
                            const std::vector<store::PastBest>& past);

// For tests and for `niche explain`: how far two problem sets are apart; infinite when the documents do not
// compare.
double problem_distance(const std::string& definition_a, const std::vector<SeenProblem>& problems_a,
                        const std::string& definition_b, const std::vector<SeenProblem>& problems_b);

}  // namespace niche::evolve
