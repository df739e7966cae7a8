// SEARCH/REPLACE edits: a model's change to a program it was shown.
//
//   <<<<<<< SEARCH
//   lines of the program
//   =======
//   what stands there instead
//   >>>>>>> REPLACE
//
// Applied in order; each SEARCH must match exactly one place. First exactly; else line by line without regard
// to spacing (the replacement then takes the place's indentation); else by likeness of at least 95 %. An edit
// that matches nothing, or several places, fails the whole change and names the most similar lines: an
// unchanged or half-changed program is never evaluated again (OpenEvolve's apply_diff skips in silence).
//
// Thread-safety: pure functions. Bounds: at most 64 edits; likeness is tried for SEARCH texts up to 8 KiB.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::evolve::proposer {

struct Edit {
  std::string search, replace;
};

// All edits in a text. kInvalid: a block that is not closed, or more than 64. None: an empty list.
dispatch::Result<std::vector<Edit>> parse_edits(std::string_view text);

// kInvalid: no edit; an edit that matches nothing or more than one place; a program that stays the same.
dispatch::Result<std::string> apply_edits(std::string_view program, const std::vector<Edit>& edits);

}  // namespace niche::evolve::proposer
