// OracleServer: what runs inside the oracle's process (oracle.h): the cache of cases and the checks.
//
// Thread-safety: one thread. Errors: the operator's own failures come back as Status; what a candidate did
// wrong comes back as a Finding.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "evolve/judge/compare.h"
#include "evolve/judge/failed_case.h"
#include "evolve/judge/host_args.h"
#include "evolve/judge/oracle.h"

namespace niche::evolve::judge {

// One case: inputs from the start, reference and yardstick from the first check on.
struct OracleCase {
  CaseId id;
  dispatch::Problem problem;
  CaseInputs inputs;  // kIn and kInOut
  bool referenced = false;
  int form = -1;
  std::array<std::vector<uint8_t>, dispatch::kMaxArgs> reference;  // kOut and kInOut, in the reference's type
  std::array<std::vector<uint8_t>, dispatch::kMaxArgs> fallback;   // the same, in the argument's type
  std::array<ErrorStats, dispatch::kMaxArgs> yardstick;

  int64_t bytes() const;
};

class OracleServer {
 public:
  OracleServer(std::shared_ptr<const dispatch::OpSpec> op,
               std::shared_ptr<const dispatch::Definition> definition, SharedArena* arena,
               int64_t cache_bytes, DefencesOff off = {});

  // Serves commands from the mailbox until the channel closes.
  void serve(int channel);

 private:
  dispatch::Status prepare(const OracleCommand& c);
  dispatch::Status refer(const OracleCommand& c);
  dispatch::Status check(const OracleCommand& c, Finding& finding);
  dispatch::Result<OracleCase*> find(const CaseId& id);
  dispatch::Status refer(OracleCase& k, int form);
  void fill(const OracleCase& k, const RunBuffers& run);
  // Findings; empty text: nothing wrong.
  std::string untouched(const OracleCase& k, const RunBuffers& run) const;
  void compare_runs(const OracleCommand& c, int arg, int64_t elements, Finding& f) const;
  void compare_reference(const OracleCase& k, const RunBuffers& run, int arg, int64_t elements,
                         Finding& f) const;
  std::string place(const OracleCase& k) const;  // " at B=4 L=200 (distribution 1 'wide')"

  bool present(int arg) const { return definition_->has_arg(arg); }
  const dispatch::ArgSpec& spec(int arg) const {
    return definition_->schema().args[static_cast<size_t>(arg)];
  }
  int arg_count() const { return static_cast<int>(definition_->schema().args.size()); }

  std::shared_ptr<const dispatch::OpSpec> op_;
  std::shared_ptr<const dispatch::Definition> definition_;
  SharedArena* arena_;
  int64_t cache_bytes_;
  DefencesOff off_;
  dispatch::Tolerance tolerance_;
  std::list<OracleCase> cases_;  // most recently used first
};

// The repeating 4-byte pattern of `poison`: even ones are NaNs in every floating type, odd ones ordinary
// values.
uint32_t poison_word(uint32_t poison);
// Fills `p` where it has no contents of its own with the pattern; `whole`: the contents too.
void fill_poison(SharedArena& arena, const Placement& p, uint32_t poison, bool whole);
// Offset from the placement's first byte of the first changed slack byte, or INT64_MIN: none.
int64_t changed_slack(const SharedArena& arena, const Placement& p, uint32_t poison);

}  // namespace niche::evolve::judge
