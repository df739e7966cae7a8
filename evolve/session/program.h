// Program: a candidate that a model wrote, as a session holds it. Its node id is kFirstProgram and up, so
// that it stands beside the search tree of template points, not in it: policies never see a candidate that is
// no point of their space.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "evolve/template_family.h"

namespace niche::evolve {

inline constexpr int kFirstProgram = 1 << 20;
inline constexpr const char* kProgramFamily = "model";
inline bool is_program(int node) { return node >= kFirstProgram; }

struct Program {
  int id = 0, batch = 0;
  int parent = -1, second_parent = -1;  // any node; -1: none
  std::string task;                     // what was asked: "draft", "improve", "repair", "combine", "known"
  std::string memory;                   // what the question showed: "none", "inherit", "siblings", "combine"
  std::string name, description;        // the model's words
  std::string text;                     // candidate_text.h
  KernelSource source;                  // of `text`, entries as it names them
  std::string model;
  std::string exchange;         // SHA-256 of the question and the answer, a blob of the store; empty: none
  std::vector<int64_t> skills;  // that the question showed

  bool settled = false;       // has a result
  std::vector<double> costs;  // one a problem; empty: failed
  std::string gate, reason;   // of the failure
  int fixes = 0;              // repairs in a row that led here
  int children = 0;
  bool valid() const { return !costs.empty(); }
};

}  // namespace niche::evolve
