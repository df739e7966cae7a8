// Screen: chooses the most promising of many cheap proposals by a surrogate. In go all points of a space that is
// small enough to be listed (one of each kernel: kernels.h), else mutations and crossings of the elites and random points;
// a few come out.
#pragma once

#include <span>

#include "evolve/search/moves.h"
#include "evolve/search/surrogate_model.h"

namespace niche::evolve::search {

struct ScreenOptions {
  int64_t listed_max = 1 << 13;  // valid points up to which the whole space is looked at
  int draws = 1500;              // else: random points a batch
  int elites = 8;                // and mutations of these
  int mutations = 600;           // half with one changed parameter, half with two or three
  int finalists = 300;           // that the slower model sees, chosen by the quicker one
  double kappa = 0.7;            // of the lower confidence bound
};

class Screen {
 public:
  // `past`: what a session on a near problem evaluated; the model has an opinion from the first batch on then.
  Screen(const SearchSpace& space, const ScreenOptions& options, std::span<const PastResult> past = {})
      : space_(space), options_(options), model_(space, past) {}

  // The best that is new to tree and batch; nothing while nothing valid is known, here or of the past. Within one
  // batch the model cannot learn; variety comes from a kappa drawn anew for each pick after the first (exponential,
  // mean options.kappa), as in Hutter, Hoos, Leyton-Brown, "Parallel algorithm configuration" (2012), and from what
  // a pick would tell about others: their deviation shrinks by their likeness to it.
  std::optional<Proposal> pick(const Tree& tree, Moves& moves, const Batch& batch);

 private:
  struct Entry {
    FamilyPoint candidate;
    int parent = kNoNode;
    SurrogateModel::Features features;
    SurrogateModel::Belief belief;
    double rough_merit = 0;
  };
  double incumbent(const Tree& tree) const;  // log cost
  void list(Kernels& kernels);
  void refresh(const Tree& tree, Moves& moves);
  Entry entry(const FamilyPoint& c, int parent) const;
  void keep_one_a_kernel(const Tree& tree, Kernels& kernels);

  const SearchSpace& space_;
  ScreenOptions options_;
  SurrogateModel model_;
  int64_t fitted_revision_ = -1;
  bool asked_for_list_ = false;
  std::vector<Entry> all_;        // the whole space, one point a kernel, where it is small enough
  std::vector<Entry> finalists_;  // for the present revision
};

}  // namespace niche::evolve::search
