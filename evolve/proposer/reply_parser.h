// parse_reply: from a model's answer to programs. Tagged sections first, since they survive chatter around
// them:
//
//   <NAME>short name</NAME>
//   <DESCRIPTION>what is different and why it should be faster</DESCRIPTION>
//   <CODE> whole program </CODE>        or        <DIFF> SEARCH/REPLACE edits </DIFF>
//
// repeated for several programs. Else edits anywhere in the text (where there is a parent), the last complete
// fence that holds an entry (`extern "C"`), or a text that is a program itself. The tagged
// sections are ShinkaEvolve's.
//
// Thread-safety: pure. Bounds: at most 8 programs of at most 64 KiB.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::evolve::proposer {

inline constexpr size_t kProgramBytesMax = 64 << 10;

struct Program {
  std::string name, description, code;
};

// kInvalid says what the answer lacks, in words that can be shown to the model: no program, a section that is
// not closed, edits that do not apply. A bad program beside good ones is left out.
dispatch::Result<std::vector<Program>> parse_reply(std::string_view text, std::string_view parent);

}  // namespace niche::evolve::proposer
