// SearchSpace: the candidates of one session as the policies see them: several families, each a finite grid
// of parameters in which some points are known not to build. Real spaces come from TemplateFamilies
// (template_space.h), recorded ones from a file (replay.h), and tests make their own.
//
// Thread-safety: const methods, several threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "evolve/template_family.h"

namespace niche::evolve::search {

struct FamilyPoint {
  int family = 0;
  Point point;
  bool operator==(const FamilyPoint&) const = default;
};

// To the next point of a grid, the last parameter fastest. False: it was the last, and is the first again.
bool next_point(const std::vector<Param>& params, Point* point);
// Equal candidates have equal keys, different ones of one space different keys ("1:0,3,2").
std::string point_key(const FamilyPoint& c);

class SearchSpace;
// Points of earlier sessions come from a store that other versions wrote: they may name what `space` does not have.
bool is_point_of(const SearchSpace& space, const FamilyPoint& c);

class SearchSpace {
 public:
  virtual ~SearchSpace() = default;
  virtual int family_count() const = 0;
  virtual const std::string& family_name(int family) const = 0;
  virtual const std::vector<Param>& params(int family) const = 0;
  // False: known not to build; never proposed. True does not promise that the candidate will pass its gates.
  virtual bool valid(const FamilyPoint& c) const = 0;
  // Points worth trying first, best guess first; all valid.
  virtual std::vector<Point> seeds(int family) const = 0;
  // Candidates of equal numbers are one kernel (kernel_identity.h): measuring one is measuring all. Requires valid(c).
  // Here: every candidate is a kernel of its own.
  virtual uint64_t kernel_number(const FamilyPoint& c) const;

  // Points of the grid, valid or not.
  int64_t grid_size(int family) const;
};

}  // namespace niche::evolve::search
