// Signals to a worker and everything it started. The worker leads a session of its own (setsid); its children
// keep that session even where they make groups of their own, so the session is what is signalled, not the
// group.
//
// Thread-safety: pure functions over /proc. Cost: about 1 ms for 200 processes.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace niche::evolve::worker {

// Processes of the session, zombies apart; unordered.
std::vector<pid_t> session_members(pid_t session);
// Signals every member, and again those that appeared meanwhile, up to a few rounds. Returns how many were
// signalled.
int signal_session(pid_t session, int signal);

}  // namespace niche::evolve::worker
