// ProgramFamily: a recorded answer of a model (tests/fixtures/free_form) as a family of one point, so that
// its program goes through the same harness as the templates.
#pragma once

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "evolve/candidate_text.h"
#include "evolve/proposer/reply_parser.h"

namespace niche::ops_cpu_test {

class ProgramFamily final : public evolve::TemplateFamily {
 public:
  ProgramFamily(std::string op, const std::string& fixture) : op_(std::move(op)), name_(op_ + ".program") {
    std::ifstream in(std::string(NICHE_FIXTURES) + "/free_form/" + fixture);
    auto programs = evolve::proposer::parse_reply(
        std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()), "");
    if (!programs.ok()) throw std::runtime_error(fixture + ": " + programs.status().to_string());
    text_ = programs->front().code;
  }
  const std::string& name() const override { return name_; }
  const std::string& op() const override { return op_; }
  const std::vector<evolve::Param>& params() const override { return params_; }
  bool valid(const dispatch::Definition&, const evolve::CpuTarget& t, const evolve::Point&) const override {
    return t.avx2;
  }
  std::vector<evolve::Point> seeds(const dispatch::Definition&, const evolve::CpuTarget& t) const override {
    return t.avx2 ? std::vector<evolve::Point>{{0}} : std::vector<evolve::Point>{};
  }
  evolve::KernelSource render(const dispatch::Definition& d, const evolve::CpuTarget&, const evolve::Point&,
                              std::string_view suffix) const override {
    auto candidate = evolve::candidate_from_text(d, name_, text_);
    if (!candidate.ok()) throw std::runtime_error(candidate.status().to_string());
    evolve::rename_entries(candidate->source, std::string(suffix));
    return candidate->source;
  }

 private:
  std::string op_, name_, text_;
  std::vector<evolve::Param> params_{{"program", {1}}};
};

}  // namespace niche::ops_cpu_test
