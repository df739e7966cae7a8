// SessionTree: one session of the store as people want to see it: the tree of its candidates with outcomes,
// the curve of the best so far, which gates refused what.
//
// Thread-safety: values and pure functions over rows that were read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "evolve/digest.h"
#include "evolve/store/store.h"

namespace niche::evolve::report {

struct SessionTree {
  store::SessionRow session;
  std::vector<store::NodeRow> nodes;              // by id; programs of models last
  std::vector<store::EvaluationRow> evaluations;  // in order
  std::map<int, std::string> texts;               // of nodes whose text the store kept
  std::map<std::string, std::string> exchanges;   // of models, by hash
  std::map<int, Digest> digests;                  // of nodes for a GPU that were timed; the last evaluation's

  // kNotFound: no such session. `id` may be a session's beginning, where only one begins so, or "last".
  static dispatch::Result<SessionTree> load(store::Store& store, const std::string& id);

  const store::NodeRow* find(int id) const;
  int best() const;                            // node id; -1: nothing valid. Verified ones before others
  std::vector<double> curve() const;           // smallest cost after each evaluation; 0: nothing valid yet
  std::map<std::string, int> refused() const;  // evaluations by first failed gate
  std::string reason(int node) const;          // of its last evaluation
  // What tells a node from its parent: parameters that differ, or a program's name.
  std::string change(const store::NodeRow& node) const;
};

// The best of a session, by what it stands on: "best confirmed 1.234x" (a FASTER verdict), "best screened 1.400x" (a
// quick look that nothing has confirmed: it may be noise).
std::string best_text(const store::SessionRow& session);

// "rms_norm.rows rows=2 unroll=4", "model wide rows".
std::string node_label(const store::NodeRow& node);

// "running", "killed" (it was running, and its process is gone: it may be resumed), "running?" (in another container,
// or of an older niche: nobody can tell from here), "stopped", "done".
std::string shown_state(const store::SessionRow& session);
std::string sessions_table(const std::vector<store::SessionRow>& rows);
// A digest in a few words: "memory, roof 61 %, DRAM 61 %, occupancy 75 % by registers".
std::string digest_brief(const Digest& digest);
// "*": the best that is confirmed; "~": the best of a session that confirmed none. Of nodes with a digest its few words;
// of the best its whole line and the bottleneck.
// `all`: every node; else judged ones, programs, the ten best, and what leads to them.
std::string tree_text(const SessionTree& tree, bool all);
// One HTML page that needs nothing else: curve, tree, and a diff of each text to its parent's.
std::string tree_page(const SessionTree& tree);

// Lines of `b` against those of `a`: " same", "-gone", "+new"; three lines of context. Texts of more than
// 3,000 lines are shown as replaced.
std::string line_diff(const std::string& a, const std::string& b);

}  // namespace niche::evolve::report
