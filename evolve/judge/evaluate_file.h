// A kernel that a person or a model wrote as a file, judged by the same Evaluator as a generated one: what
// stands behind `niche evaluate KERNEL --op ...`.
//
// The file is C++ without #include. What niche must know stands in comment lines of the form `// niche: ...`:
//   // niche: name rms_norm.f32.mine
//   // niche: phase ENTRY tasks=M/4*H parallel_min=64    tasks: product of ceil(axis / divisor); none: one
//   task
//   // niche: pack ENTRY bytes=4096                      packs the constant arguments
//   // niche: workspace 65536                            bytes a call
//   // niche: align 32                                   of every pointer; default: the element
//   // niche: limit M=4..4096%4                          problems it can run: bounds and a multiple
//   // niche: flag -fno-trapping-math                    from the toolchain's allow-list
//   // niche: nondeterministic                           equal inputs may give other bits
//   // niche: batch_variant                              a row's bits may depend on the other rows
//   // niche: preamble                                   put cpu_preamble() in front (vector types,
//   NicheKernelArgs)
// Without a phase line, the file's only `extern "C" void ENTRY(` is the one phase, with one task.
// Thread-safety: pure, and as Evaluator. Errors name file and line.
#pragma once

#include <string>
#include <string_view>

#include "evolve/evaluator.h"

namespace niche::evolve {

// Parses; compiles nothing. kInvalid: "kernel.cc line 3: unknown axis 'Q' in tasks".
dispatch::Result<Candidate> candidate_from_text(const dispatch::Definition& definition,
                                                const std::string& file_name, std::string_view text);

// Reads and judges a file (at most 1 MiB). kIo or kInvalid: no candidate could be made of it; what is wrong
// with the candidate itself is the Verdict's.
dispatch::Result<Judgement> evaluate_file(const std::string& path, EvaluatorSpec spec,
                                          EvaluatorOptions options = {});

}  // namespace niche::evolve
