// How often a candidate without a verdict is judged: one bound for the session's plan and for the judge.
#pragma once

namespace niche::evolve {

// Judgements of one candidate that found neither way (kAmbiguous), each with twice the pairs of the one before: what
// the union bound of a false FASTER is taken over (docs/evaluation.md).
inline constexpr int kJudgementsMax = 3;

}  // namespace niche::evolve
