// Recorder: a session's way to the store. A store that fails in the middle of a session (a full disk, a
// damaged file) ends the recording, not the session: what was verified still reaches the cache.
//
// Thread-safety: one owner.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "evolve/search/tree.h"
#include "evolve/session/candidate_source.h"
#include "evolve/session/program.h"
#include "evolve/store/store.h"

namespace niche::evolve {

// What a store keeps of a session that did not end, as far as a new process needs it.
struct SessionHistory {
  std::vector<store::NodeRow> nodes;
  std::vector<store::EvaluationRow> evaluations;
  std::vector<store::QuestionRow> questions;
};

class Recorder {
 public:
  Recorder(store::Store* store, std::string session) : store_(store), session_(std::move(session)) {}

  void nodes(const search::Tree& tree, const search::SearchSpace& space, int first,
             const std::vector<RenderedPoint>& rendered) {
    if (!recording()) return;
    std::vector<store::NodeRow> rows;
    for (int id = first; id < tree.size(); ++id) {
      const search::Node& n = tree.node(id);
      const RenderedPoint& r = rendered[static_cast<size_t>(id - first)];
      store::NodeRow row;
      row.id = id;
      row.parent = n.parent;
      row.second_parent = n.second_parent;
      row.batch = n.batch;
      row.made_by = n.made_by;
      row.family = space.family_name(n.candidate.family);
      row.point_json = point_to_json(space, n.candidate);
      row.source_hash = r.text_hash;
      rows.push_back(std::move(row));
    }
    keep(store_->add_nodes(session_, rows));
  }
  // Programs cannot be rendered again: their text is kept, and the exchange that brought them.
  void program(const Program& p, const std::string& point_json) {
    if (!recording()) return;
    store::NodeRow row;
    row.id = p.id;
    row.parent = p.parent;
    row.second_parent = p.second_parent;
    row.batch = p.batch;
    row.made_by = p.task;
    row.family = kProgramFamily;
    row.point_json = point_json;
    auto hash = store_->put_blob(p.text);
    if (!hash.ok()) return keep(hash.status());
    row.source_hash = *hash;
    keep(store_->add_nodes(session_, std::span(&row, 1)));
  }
  // The source of a candidate that was judged. Screened ones can be rendered again from family and point.
  void source(const std::string& text) {
    if (!recording()) return;
    auto hash = store_->put_blob(text);
    if (!hash.ok()) keep(hash.status());
  }
  void question(const store::QuestionRow& row) {
    if (recording()) keep(store_->add_question(session_, row));
  }
  void evaluations(const std::vector<store::EvaluationRow>& rows) {
    if (recording() && !rows.empty()) keep(store_->add_evaluations(session_, rows));
  }
  void end(const std::string& state, const std::string& reason, int64_t unix_ns) {
    if (recording()) keep(store_->set_session_state(session_, state, reason, unix_ns));
  }
  // Why recording ended; OK while it goes on, or where there is no store.
  const dispatch::Status& status() const { return status_; }

 private:
  bool recording() const { return store_ != nullptr && status_.ok(); }
  void keep(dispatch::Status s) {
    if (!s.ok()) status_ = std::move(s);
  }
  store::Store* store_;
  std::string session_;
  dispatch::Status status_;
};

}  // namespace niche::evolve
