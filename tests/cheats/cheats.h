// Ways to look faster or right without being it, each written as a kernel of test_norm. Numbers are those of
// the catalogue in docs/evaluation.md. None may come out FASTER, and the verdict must say what was seen.
//
// A cheat that pays only when it is believed does honest work slowly, so that honesty cannot make it FASTER:
// its row is computed `kSlow` times.
#pragma once

#include <string>
#include <vector>

#include "evolve/evaluator.h"

namespace niche::evolve::cheats {

struct Cheat {
  const char* name;
  std::string body, outside;
  std::vector<std::string> words;  // one of them must stand in the reason; empty: only "not FASTER"
  int64_t workspace_bytes = 0;
  std::string pack_symbol = "";
  int64_t packed_bytes = 0;
};

std::vector<Cheat> all();
// What the judge gets to see.
Candidate candidate(const Cheat& cheat);
EvaluatorSpec spec();

}  // namespace niche::evolve::cheats
