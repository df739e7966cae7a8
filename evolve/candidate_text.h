// A kernel as one text that describes itself: how people hand one in (`niche evaluate`), and how models write
// and read them.
//
// The file is C++ without #include, or CUDA C++ where it is for a device. What niche must know stands in comment lines of the form `// niche: ...`:
//   // niche: name rms_norm.f32.mine
//   // niche: phase ENTRY tasks=M/4*H parallel_min=64    tasks: product of ceil(axis / divisor); none: one
//   // niche: pack ENTRY bytes=4096                      packs the constant arguments
//   // niche: workspace 65536                            bytes a call
//   // niche: align 32                                   of every pointer; default: the element
//   // niche: limit M=4..4096%4                          problems it can run: bounds and a multiple
//   // niche: flag -fno-trapping-math                    from the toolchain's allow-list
//   // niche: nondeterministic                           equal inputs may give other bits
//   // niche: batch_variant                              a row's bits may depend on the other rows
//   // niche: preamble                                   put cpu_preamble() in front
// On a CUDA device a phase is a kernel, and its launch is written with it (cuda_plan_text.h):
//   // niche: phase ENTRY grid=B*Lo/200 threads=256 shared=222720 per_sm=1 cluster=2 overlap
// its preamble is cuda_preamble(), its default alignment 16; it has no pack, no flag and at most four phases.
// Without a phase line, the file's only `extern "C" void ENTRY(` is the one phase, with one task.
// Thread-safety: pure functions. Errors name file and line.
#pragma once

#include <string>
#include <string_view>

#include "evolve/cuda_template_family.h"
#include "evolve/evaluator.h"

namespace niche::evolve {

// Parses; compiles nothing. `device`: the text is for it, its launches must fit it; null: for the CPU.
// kInvalid: "kernel.cc line 3: unknown axis 'Q' in tasks".
dispatch::Result<Candidate> candidate_from_text(const dispatch::Definition& definition,
                                                const std::string& file_name, std::string_view text,
                                                const CudaTarget* device = nullptr);

// The other way: directives, then the text without the preamble.
std::string candidate_to_text(const dispatch::Definition& definition, const KernelSource& source);

// Gives every entry a name of its own, in text and plan: NAME becomes NAME + suffix. A kernel for a device, which is a module of its
// own, stays as it is.
void rename_entries(KernelSource& source, const std::string& suffix);

}  // namespace niche::evolve
