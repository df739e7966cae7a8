// SpaceFamily: what the CPU families have in common: a parameter list with access by name, seeds written as
// name=value, and a builder for the source text. A family adds its rules, its constants and its body of C++.
//
// Thread-safety: immutable after construction. Cost: rendering is some µs of string building.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "evolve/template_family.h"

namespace niche::ops_cpu {

using dispatch::Definition;
using evolve::CpuTarget;
using evolve::KernelSource;
using evolve::Param;
using evolve::Point;

class SpaceFamily : public evolve::TemplateFamily {
 public:
  const std::string& name() const override { return name_; }
  const std::string& op() const override { return op_; }
  const std::vector<Param>& params() const override { return params_; }
  // The points of seed_points() that are valid, each once, in order; the first valid point of the space if
  // none is.
  std::vector<Point> seeds(const Definition& d, const CpuTarget& t) const override;
  bool valid(const Definition& d, const CpuTarget& t, const Point& point) const override;

 protected:
  using Setting = std::pair<std::string_view, int>;
  using Settings = std::vector<Setting>;

  // Read access to a point by parameter name.
  class View {
   public:
    View(const SpaceFamily& family, const Point& point) : family_(family), point_(point) {}
    int operator[](std::string_view name) const;

   private:
    const SpaceFamily& family_;
    const Point& point_;
  };

  // `name` is "<op>.<variant>".
  SpaceFamily(std::string name, std::string op, std::vector<Param> params);

  // The family's own rules; called for points whose indices are in range on a target with AVX2.
  virtual bool allowed(const Definition& d, const CpuTarget& t, const View& v) const = 0;
  // Good starting points as name=value lists; a parameter left out takes its first value, a value that the
  // parameter does not list makes the seed vanish.
  virtual std::vector<Settings> seed_points(const Definition& d, const CpuTarget& t) const = 0;

  // "rms_norm.f32.rows.rows2_unroll4.avx2"
  std::string kernel_name(const Definition& d, const CpuTarget& t, const Point& point) const;

 private:
  std::string name_, op_;
  std::vector<Param> params_;
};

// The text of one candidate: preamble, constants, then bodies in which '@' stands for the suffix.
class SourceBuilder {
 public:
  explicit SourceBuilder(std::string_view suffix);
  SourceBuilder& let(std::string_view name, int64_t value);           // constexpr long
  SourceBuilder& let_float(std::string_view name, double value);      // constexpr float
  SourceBuilder& type(std::string_view name, std::string_view what);  // typedef
  SourceBuilder& body(std::string_view text);
  std::string take() { return std::move(text_); }

 private:
  std::string suffix_, text_;
};

// "float" or "bf16": the preamble's name of the Definition's element type.
std::string_view element(const Definition& d);
bool is_bf16(const Definition& d);

// Threads pay from a number of elements on: min tasks for tasks of `elements_per_task`, given `kilo` Ki
// elements.
int64_t parallel_min_tasks(int kilo, int64_t elements_per_task);

// No limit on any variable axis; pointers aligned to the element type alone.
dispatch::Guard any_problem(const Definition& d);

}  // namespace niche::ops_cpu
