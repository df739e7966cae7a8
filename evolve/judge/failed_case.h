// The inputs of a case, and a failed case as files that any program can read.
//
// Thread-safety: one owner thread. Cost: that of the operator's make_inputs; write_failed_case also its fp64 reference.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "dispatch/op_spec.h"
#include "evolve/judge/wire.h"
#include "evolve/verdict.h"

namespace niche::evolve::judge {

// Buffers of a problem's kIn and kInOut arguments, filled for `id` (the constant ones from its constant_seed, where it has
// one). Others stay empty; an argument without elements has one spare byte.
using CaseInputs = std::array<std::vector<uint8_t>, dispatch::kMaxArgs>;
dispatch::Status make_case_inputs(const dispatch::OpSpec& op, const dispatch::Problem& problem,
                                  const CaseId& id, CaseInputs* inputs);

FailedCase failed_case(const CaseId& id, const dispatch::Definition& definition);

}  // namespace niche::evolve::judge

namespace niche::evolve {

// Writes NAME.npy of each input and NAME.expected.npy (fp64 where it is floating) of each output to `directory`, which is
// made where it is not there. NumPy has no bf16: such values are written as f32, which holds them exactly. Gives the
// files' names. Runs the operator's own code: not in a process that will still fork evaluators. kIo: the files; else what
// the operator says.
dispatch::Result<std::vector<std::string>> write_failed_case(
    const dispatch::OpSpec& op, std::shared_ptr<const dispatch::Definition> definition,
    const FailedCase& failed, const std::string& directory);

}  // namespace niche::evolve
