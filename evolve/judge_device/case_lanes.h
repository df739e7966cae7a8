// CaseLanes: several oracles at once, each in a process of its own, so that the device does not wait for the host: while
// it runs one case, the inputs and references of the next ones are computed, and what earlier ones left is compared.
//
// A case is always given to the same lane, whose oracle keeps its reference for the next candidate. Order of life: made
// before any thread of this process, since oracles are forked. Thread-safety: one owner thread; each lane has a thread,
// which alone speaks with its oracle. Bounds: the caller's, who begins cases and takes their results.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "evolve/judge/arena.h"
#include "evolve/judge/oracle.h"
#include "evolve/probe/probe_job.h"

namespace niche::evolve::judge {

struct LaneOptions {
  int lanes = 1;
  std::function<void()> child_start;  // in each oracle
  int64_t memory_bytes = 0;           // for the buffers of one lane
  int64_t cache_bytes = 0;            // references and inputs that all lanes together keep
  DefencesOff defences_off;
};

class CaseLanes {
 public:
  // Inputs as a job wants them; outputs have no data.
  struct Made {
    dispatch::Status status;
    std::vector<ProbeJob::Arg> args;
  };

  static dispatch::Result<std::unique_ptr<CaseLanes>> make(
      std::shared_ptr<const dispatch::OpSpec> op, std::shared_ptr<const dispatch::Definition> definition,
      const LaneOptions& options);
  ~CaseLanes();
  CaseLanes(const CaseLanes&) = delete;
  CaseLanes& operator=(const CaseLanes&) = delete;

  // How many cases are worth having under way.
  int ahead() const;
  // The inputs of a case; once they are there, its reference and form `form`'s error, for a check that is to come
  // (negative: none is).
  std::future<Made> begin(const CaseId& id, int form);
  // Compares what a run left in the arguments that are not inputs.
  std::future<dispatch::Result<Finding>> check(const CaseId& id, int form,
                                               std::vector<std::vector<uint8_t>> outputs);

 private:
  class Lane;
  CaseLanes() = default;
  Lane& lane_of(const CaseId& id);
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace niche::evolve::judge
