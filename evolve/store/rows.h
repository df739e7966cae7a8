// The store's rows: sessions, their nodes (candidates), and the evaluations of those. Plain values; texts
// named *_json are written and read by the session (evolve/session/).
#pragma once

#include <cstdint>
#include <string>

namespace niche::evolve::store {

struct SessionRow {
  std::string id;
  std::string definition;       // Definition::name()
  std::string definition_json;  // evolve/definition_json.h
  std::string op, dtype;
  std::string arch;               // "cpu.avx2"
  std::string problems_json;      // the seen problems, with weights
  std::string request_json;       // budget, policy, seed, warm start: all that a resumed session needs
  std::string state = "running";  // "stopped": may be resumed; "done". One that died stays "running"
  std::string reason;             // why it ended
  std::string process;            // the last that worked on it (process_mark.h); the store writes it
  int64_t started_unix_ns = 0;
  int64_t ended_unix_ns = 0;
  double best_cost = 0;       // smallest of any valid candidate, most of them only screened; 0: nothing valid
  double confirmed_cost = 0;  // smallest of those that were judged FASTER; 0: none
  int evaluations = 0;
};

struct NodeRow {
  int id = 0;
  int parent = -1, second_parent = -1;  // -1: none
  int batch = 0;
  std::string made_by;      // the operator: "seed", "model", ...
  std::string family;       // template family
  std::string point_json;   // {"rows":2,"unroll":4}: names and values, not positions, so that it outlives a
                            // family's edit
  std::string source_hash;  // SHA-256 of the source, hex: its blob
  // Follow from the evaluations; add_evaluation keeps them.
  std::string outcome =
      "in_flight";  // "in_flight", "failed", "screened", "not_faster", "ambiguous", "faster"
  double cost = 0;  // 0: none
};

struct EvaluationRow {
  int64_t seq = 0;  // order within the store; given by it
  int node = 0;
  std::string kind;  // "screen", "judge", "duplicate", "profile" (no outcome of its own: the node's stands)
  std::string outcome;  // becomes the node's
  std::string gate;     // first failed gate, or "none"
  std::string reason;
  double cost = 0;
  std::string verdict_json;
  std::string artefact_hash;  // SHA-256 of the machine code, hex; empty: none
};

// One question to a model, once it was answered or failed.
struct QuestionRow {
  int number = 0;       // from 1
  std::string outcome;  // "programs", or why there is none
  double usd = 0;       // all that the session's questions have cost so far, failed calls included
  int64_t tokens = 0;   // likewise
};

// A candidate that an earlier session found good, for a new session's start.
struct PastBest {
  std::string session, definition_json, problems_json;
  std::string family, point_json, outcome;
  double cost = 0;
  std::string source_hash;
};

}  // namespace niche::evolve::store
