// SessionRequest and SessionEvent as JSON: for the worker's protocol and for the store.
//
// Thread-safety: pure functions. Errors: kInvalid names the field.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"
#include "evolve/worker_client.h"

namespace niche::evolve {

std::string request_to_json(const SessionRequest& request);
// Checks bounds: 1 to 64 problems, limits that are positive and finite, a batch of 1 to 64.
dispatch::Result<SessionRequest> request_from_json(std::string_view text);

std::string event_to_json(const SessionEvent& event);
dispatch::Result<SessionEvent> event_from_json(std::string_view text);

std::string problems_to_json(const std::vector<SeenProblem>& problems);
dispatch::Result<std::vector<SeenProblem>> problems_from_json(std::string_view text);

}  // namespace niche::evolve
