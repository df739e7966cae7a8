// KernelRecord: what is kept of a verified kernel across restarts. The on-disk form is flatbuffers
// (kernel_record.fbs); this is the form the rest of niche uses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/devices/cuda/cuda_plan.h"
#include "dispatch/kernel.h"

namespace niche::kernels_cache {

struct KernelRecord {
  std::string name;             // "rms_norm.f32.rows.r2_u4.avx512"
  std::string op;               // "rms_norm"
  std::string definition;       // Definition::name()
  std::string definition_json;  // enough to build the Definition again (evolve/definition_json.h)
  dispatch::KernelKind kind = dispatch::KernelKind::kCpu;
  dispatch::Guard guard;  // what was verified
  dispatch::LaunchPlan plan;
  dispatch::CudaLaunchPlan
      cuda_plan;  // of kCuda: how its blocks are launched; `plan` then says where tiles end
  dispatch::KernelProperties properties;
  dispatch::Provenance provenance;
  std::string source;             // text it was compiled from
  std::vector<uint8_t> artefact;  // shared object or cubin
  std::string artefact_sha256;    // hex; checked whenever the artefact is opened
  std::string verdict_json;       // the evaluator's Verdict that admitted it
  double fallback_ns = 0;         // weighted medians at admission: best fallback and this kernel
  double kernel_ns = 0;
  std::string fallback_name;  // the form it was compared with
  int64_t created_unix_ns = 0;
  int64_t served_calls = 0;  // calls answered up to the last flush: orders warm start
};

}  // namespace niche::kernels_cache
