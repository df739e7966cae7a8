// What a digest tells whoever proposes the next candidate for a GPU: one bottleneck with its numbers, and the one page of
// the knowledge base that says what to do about it. Whoever is shown three problems changes three things at once, and
// learns nothing from the result.
//
// Thread-safety: pure functions; a Library has one owner.
#pragma once

#include <map>
#include <string>

#include "evolve/digest.h"
#include "kb/library.h"

namespace niche::evolve {

// The figures of a digest by which pages are found ("metric: dram_pct > 70"): kernel_us, and dram_pct, l2_pct,
// tensor_pct, occupancy_pct, waves, spill_bytes as far as they are known.
std::map<std::string, double> digest_metrics(const Digest& digest);

// "cuda.sm_90a" as the knowledge base spells it: "nvidia.sm90". Others as they are.
std::string kb_platform(const std::string& arch);

// The page of guidance for the digest's bottleneck on `arch`: of those about its topic the one for which most of the
// digest's figures speak. Null: none is about it.
const kb::Document* method_page(const kb::Library& library, const Digest& digest, const std::string& arch);

// A section of a question: the digest of `whose` ("the program 'x'"), the bottleneck, and the method page where there is
// one; `bytes_max` of the page at most, whole modules.
std::string diagnosis_section(const Digest& digest, const std::string& whose, const kb::Document* page,
                              size_t bytes_max = 4 << 10);

}  // namespace niche::evolve
