// RecordedSpace: a schedule space whose every point was evaluated once and written to a file, so that
// searches can be replayed without compiler or machine: tests of the policies, and the proof of their
// defaults (docs/evolution.md).
//
// The file: one line of JSON, {"space": name, "families": [{"name", "params": [{"name", "values": [..]}],
// "seeds":
// [[index..]..]}], "note": where and how it was measured}, then one line a measurement: family, the point's
// indices, and its cost (kernel time / fallback time; 0: failed a gate), separated by blanks; where several points are
// one kernel (kernel_identity.h), last the number of their kernel: all points of such a space have one. A point
// measured several times counts with its median, or as failed when most of its measurements failed.
//
// Thread-safety: immutable once loaded. Bounds: grids of at most 2^22 points, files of at most 256 MiB.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"
#include "evolve/search/space.h"

namespace niche::evolve::replay {

class RecordedSpace final : public search::SearchSpace {
 public:
  // kNotFound: no such file; kCorrupt names the line.
  static dispatch::Result<RecordedSpace> load(const std::string& path);
  static dispatch::Result<RecordedSpace> parse(std::string_view text, const std::string& origin);

  int family_count() const override { return static_cast<int>(families_.size()); }
  const std::string& family_name(int f) const override { return at(f).name; }
  const std::vector<Param>& params(int f) const override { return at(f).params; }
  bool valid(const search::FamilyPoint& p) const override { return cost_at(p) >= 0; }  // recorded at all
  std::vector<Point> seeds(int f) const override { return at(f).seeds; }
  uint64_t kernel_number(const search::FamilyPoint& p) const override;

  // What an evaluation said: 0 where the candidate failed. Requires valid(p).
  double cost(const search::FamilyPoint& p) const { return cost_at(p); }
  const std::string& name() const { return name_; }
  const std::string& note() const { return note_; }
  double optimum() const { return optimum_; }  // the smallest cost; 0 when nothing passed
  int64_t points() const { return points_; }
  int64_t passing_points() const { return passing_; }
  int64_t kernels() const { return kernels_ > 0 ? kernels_ : points_; }  // different ones
  int64_t within(double factor) const;  // points whose cost is at most factor * optimum

 private:
  struct Family {
    std::string name;
    std::vector<Param> params;
    std::vector<Point> seeds;
    std::vector<float> costs;      // by grid index; below 0: not recorded
    std::vector<int32_t> kernels;  // by grid index; empty: each point is one
  };
  const Family& at(int f) const { return families_[static_cast<size_t>(f)]; }
  double cost_at(const search::FamilyPoint& p) const;

  std::string name_, note_;
  std::vector<Family> families_;
  double optimum_ = 0;
  int64_t points_ = 0, passing_ = 0, kernels_ = 0;
};

// The header line of a space that is about to be recorded.
std::string recorded_header(const search::SearchSpace& space, const std::string& name,
                            const std::string& note);
// One measurement's line; a kernel's number below 0 is none.
std::string recorded_line(const search::FamilyPoint& p, double cost, int kernel = -1);

}  // namespace niche::evolve::replay
