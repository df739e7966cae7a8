#include "kernels_cache/record_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels_cache/kernel_record_generated.h"
#include "kernels_cache/sha256.h"

namespace niche::kernels_cache {
namespace {

using dispatch::corrupt;
using dispatch::invalid;
using dispatch::Result;
using dispatch::Status;

constexpr size_t kNameBytesMax = 1024;
constexpr size_t kPhasesMax = 4;
constexpr size_t kFactorsMax = dispatch::kMaxAxes;
constexpr int64_t kExtentMax = int64_t{1} << 48;

bool plain_name(std::string_view s) {
  if (s.empty() || s.size() > kNameBytesMax) return false;
  return std::none_of(s.begin(), s.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

bool c_identifier(std::string_view s) {
  const auto ok = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  return !s.empty() && s.size() <= kNameBytesMax && std::isdigit(static_cast<unsigned char>(s[0])) == 0 &&
         std::all_of(s.begin(), s.end(), ok);
}

bool hex_digest(std::string_view s) {
  return s.size() == 64 && std::all_of(s.begin(), s.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

Status validate_guard(const dispatch::Guard& g) {
  if (g.var_count < 0 || g.var_count > dispatch::kMaxVarAxes)
    return invalid("guard: " + std::to_string(g.var_count) + " variable axes");
  for (int i = 0; i < g.var_count; ++i) {
    const auto& r = g.var[static_cast<size_t>(i)];
    if (r.multiple_of < 1 || r.lo < 0 || r.hi > kExtentMax)
      return invalid("guard: range " + std::to_string(i) + " [" + std::to_string(r.lo) + ", " +
                     std::to_string(r.hi) + "] multiple of " + std::to_string(r.multiple_of));
  }
  const int a = g.alignment_bytes;
  if (a < 1 || a > 4096 || (a & (a - 1)) != 0) return invalid("guard: alignment " + std::to_string(a));
  return {};
}

Status validate_plan(const dispatch::LaunchPlan& plan) {
  if (plan.phases.empty() || plan.phases.size() > kPhasesMax)
    return invalid("plan: " + std::to_string(plan.phases.size()) + " phases");
  for (const dispatch::Phase& p : plan.phases) {
    if (!c_identifier(p.symbol)) return invalid("plan: symbol '" + p.symbol + "'");
    if (p.factors.size() > kFactorsMax) return invalid("plan: too many factors");
    for (const dispatch::TaskFactor& f : p.factors)
      if (f.axis < 0 || f.axis >= dispatch::kMaxAxes || f.divisor < 1 || f.divisor > kExtentMax)
        return invalid("plan: factor of axis " + std::to_string(f.axis) + " by " + std::to_string(f.divisor));
    if (p.parallel_min_tasks < 1)
      return invalid("plan: parallel_min_tasks " + std::to_string(p.parallel_min_tasks));
  }
  if (!plan.pack_symbol.empty() && !c_identifier(plan.pack_symbol))
    return invalid("plan: pack symbol '" + plan.pack_symbol + "'");
  if (plan.packed_bytes < 0 || plan.packed_bytes > kExtentMax) return invalid("plan: packed_bytes");
  if (plan.workspace_bytes < 0 || plan.workspace_bytes > kExtentMax) return invalid("plan: workspace_bytes");
  return {};
}

// What no driver would launch is refused before it reaches one.
Status validate_cuda_plan(const dispatch::CudaLaunchPlan& plan) {
  if (plan.phases.empty() || plan.phases.size() > dispatch::CudaLaunchPlan::kPhasesMax)
    return invalid("CUDA plan: " + std::to_string(plan.phases.size()) + " phases");
  for (const dispatch::CudaPhase& p : plan.phases) {
    if (!c_identifier(p.symbol)) return invalid("CUDA plan: symbol '" + p.symbol + "'");
    if (p.factors.size() > kFactorsMax) return invalid("CUDA plan: too many factors");
    for (const dispatch::TaskFactor& f : p.factors)
      if (f.axis < 0 || f.axis >= dispatch::kMaxAxes || f.divisor < 1 || f.divisor > kExtentMax)
        return invalid("CUDA plan: factor of axis " + std::to_string(f.axis) + " by " +
                       std::to_string(f.divisor));
    if (p.threads < 1 || p.threads > 1024 || p.shared_bytes < 0 || p.shared_bytes > (1 << 20) ||
        p.blocks_per_sm < 0 || p.blocks_per_sm > 64 || p.cluster < 1 || p.cluster > 16)
      return invalid("CUDA plan: phase " + p.symbol + ": " + std::to_string(p.threads) + " threads, " +
                     std::to_string(p.shared_bytes) + " bytes shared, " + std::to_string(p.blocks_per_sm) +
                     " blocks a multiprocessor, clusters of " + std::to_string(p.cluster));
  }
  if (plan.workspace_bytes < 0 || plan.workspace_bytes > kExtentMax)
    return invalid("CUDA plan: workspace_bytes");
  if (plan.sm_count < 0 || plan.sm_count > (1 << 16)) return invalid("CUDA plan: sm_count");
  return {};
}

std::vector<fbs::TaskFactor> factors_of(const std::vector<dispatch::TaskFactor>& factors) {
  std::vector<fbs::TaskFactor> out;
  for (const auto& f : factors) out.emplace_back(f.axis, f.divisor);
  return out;
}

// flatbuffers' verifier looks at where a vector's length lies, not at the structs behind it (version 22).
template <typename Struct>
bool well_placed(const flatbuffers::Vector<const Struct*>* v) {
  return v == nullptr || v->size() == 0 || reinterpret_cast<uintptr_t>(v->Data()) % alignof(Struct) == 0;
}

std::string text_of(const flatbuffers::String* s) { return s == nullptr ? std::string() : s->str(); }

Miss corrupt_miss(const std::string& where, const std::string& text) {
  return {MissReason::kCorrupt, where + ": " + text};
}

bool artefact_matches(const KernelRecord& r, const std::string& where, Miss* miss) {
  const std::string got = to_hex(sha256(r.artefact));
  if (got == r.artefact_sha256) return true;
  *miss = corrupt_miss(where, "artefact has SHA-256 " + got + ", its record names " + r.artefact_sha256);
  return false;
}

}  // namespace

Status validate(const KernelRecord& r) {
  if (!plain_name(r.name)) return invalid("record: name empty, too long or with control characters");
  const std::string where = "record '" + r.name + "': ";
  const auto named = [&](const Status& s) { return s.ok() ? s : Status(s.code(), where + s.message()); };
  if (!plain_name(r.op)) return invalid(where + "operator name");
  if (!plain_name(r.definition)) return invalid(where + "definition name");
  if (r.kind > dispatch::KernelKind::kHip) return invalid(where + "unknown kind");
  if (r.kind == dispatch::KernelKind::kFallback) return invalid(where + "a fallback has no artefact to keep");
  if (!r.provenance.source_hash.empty() && !plain_name(r.provenance.source_hash))
    return invalid(where + "source hash");
  if (!hex_digest(r.artefact_sha256)) return invalid(where + "artefact_sha256 is not 64 hex digits");
  if (static_cast<int64_t>(r.artefact.size()) > kArtefactBytesMax)
    return invalid(where + "artefact too large");
  if (!std::isfinite(r.fallback_ns) || !std::isfinite(r.kernel_ns) || r.fallback_ns < 0 || r.kernel_ns < 0)
    return invalid(where + "times must be finite and not negative");
  if (r.served_calls < 0) return invalid(where + "served_calls negative");
  NICHE_RETURN_IF_ERROR(named(validate_guard(r.guard)));
  if (r.kind == dispatch::KernelKind::kCuda) NICHE_RETURN_IF_ERROR(named(validate_cuda_plan(r.cuda_plan)));
  return named(validate_plan(r.plan));
}

std::vector<uint8_t> encode_record(const KernelRecord& r) {
  flatbuffers::FlatBufferBuilder b(1024 + r.source.size() + r.verdict_json.size() + r.definition_json.size());
  std::vector<fbs::Range> ranges;
  for (int i = 0; i < r.guard.var_count; ++i) {
    const auto& v = r.guard.var[static_cast<size_t>(i)];
    ranges.emplace_back(v.lo, v.hi, v.multiple_of);
  }
  std::vector<flatbuffers::Offset<fbs::Phase>> phases;
  for (const dispatch::Phase& p : r.plan.phases) {
    phases.push_back(fbs::CreatePhase(b, b.CreateString(p.symbol),
                                      b.CreateVectorOfStructs(factors_of(p.factors)), p.parallel_min_tasks));
  }
  std::vector<flatbuffers::Offset<fbs::CudaPhase>> cuda_phases;
  for (const dispatch::CudaPhase& p : r.cuda_plan.phases)
    cuda_phases.push_back(fbs::CreateCudaPhase(b, b.CreateString(p.symbol),
                                               b.CreateVectorOfStructs(factors_of(p.factors)), p.threads,
                                               p.shared_bytes, p.blocks_per_sm, p.cluster, p.overlap));
  const auto provenance = fbs::CreateProvenanceDirect(
      b, r.provenance.family.c_str(), r.provenance.parameters.c_str(), r.provenance.session.c_str(),
      r.provenance.compiler.c_str(), r.provenance.source_hash.c_str());
  const auto name = b.CreateString(r.name), op = b.CreateString(r.op),
             definition = b.CreateString(r.definition);
  const auto json = b.CreateString(r.definition_json), pack = b.CreateString(r.plan.pack_symbol);
  const auto source = b.CreateString(r.source), sha = b.CreateString(r.artefact_sha256);
  const auto verdict = b.CreateString(r.verdict_json), fallback = b.CreateString(r.fallback_name);
  const auto var_ranges = b.CreateVectorOfStructs(ranges);
  const auto phase_vector = b.CreateVector(phases);
  const auto cuda_vector = b.CreateVector(cuda_phases);

  fbs::KernelRecordBuilder k(b);
  k.add_name(name);
  k.add_op(op);
  k.add_definition(definition);
  k.add_definition_json(json);
  k.add_kind(static_cast<uint8_t>(r.kind));
  k.add_var_ranges(var_ranges);
  k.add_alignment_bytes(r.guard.alignment_bytes);
  k.add_phases(phase_vector);
  k.add_pack_symbol(pack);
  k.add_packed_bytes(r.plan.packed_bytes);
  k.add_workspace_bytes(r.plan.workspace_bytes);
  k.add_deterministic(r.properties.deterministic);
  k.add_batch_invariant(r.properties.batch_invariant);
  k.add_capturable(r.properties.capturable);
  k.add_provenance(provenance);
  k.add_source(source);
  k.add_artefact_sha256(sha);
  k.add_verdict_json(verdict);
  k.add_fallback_ns(r.fallback_ns);
  k.add_kernel_ns(r.kernel_ns);
  k.add_fallback_name(fallback);
  k.add_created_unix_ns(r.created_unix_ns);
  k.add_served_calls(r.served_calls);
  k.add_cuda_phases(cuda_vector);
  k.add_cuda_sm_count(r.cuda_plan.sm_count);
  fbs::FinishKernelRecordBuffer(b, k.Finish());
  return {b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize()};
}

Result<KernelRecord> decode_record(std::span<const uint8_t> payload) {
  // flatbuffers reads scalars in place: the buffer must be aligned as malloc aligns.
  std::vector<uint8_t> aligned;
  if (reinterpret_cast<uintptr_t>(payload.data()) % alignof(std::max_align_t) != 0) {
    aligned.assign(payload.begin(), payload.end());
    payload = aligned;
  }
  flatbuffers::Verifier verifier(payload.data(), payload.size(), /*max_depth=*/8, /*max_tables=*/64);
  if (payload.size() < 8 || !fbs::VerifyKernelRecordBuffer(verifier))
    return corrupt("flatbuffers verifier refused " + std::to_string(payload.size()) + " bytes");
  const fbs::KernelRecord& k = *fbs::GetKernelRecord(payload.data());

  KernelRecord r;
  r.name = text_of(k.name());
  r.op = text_of(k.op());
  r.definition = text_of(k.definition());
  r.definition_json = text_of(k.definition_json());
  r.kind = static_cast<dispatch::KernelKind>(k.kind());
  if (k.var_ranges() != nullptr) {
    if (!well_placed(k.var_ranges())) return corrupt("guard: ranges at an odd address");
    if (k.var_ranges()->size() > dispatch::kMaxVarAxes) return corrupt("guard: more variable axes than fit");
    for (const fbs::Range* v : *k.var_ranges())
      r.guard.var[static_cast<size_t>(r.guard.var_count++)] = {v->lo(), v->hi(), v->multiple_of()};
  }
  r.guard.alignment_bytes = k.alignment_bytes();
  if (k.phases() != nullptr) {
    for (const fbs::Phase* p : *k.phases()) {
      if (!well_placed(p->factors())) return corrupt("phase: factors at an odd address");
      dispatch::Phase phase{text_of(p->symbol()), {}, p->parallel_min_tasks()};
      if (p->factors() != nullptr)
        for (const fbs::TaskFactor* f : *p->factors()) phase.factors.push_back({f->axis(), f->divisor()});
      r.plan.phases.push_back(std::move(phase));
    }
  }
  if (k.cuda_phases() != nullptr) {
    for (const fbs::CudaPhase* p : *k.cuda_phases()) {
      if (!well_placed(p->factors())) return corrupt("phase: factors at an odd address");
      dispatch::CudaPhase phase{text_of(p->symbol()), {},           p->threads(), p->shared_bytes(),
                                p->blocks_per_sm(),   p->cluster(), p->overlap()};
      if (p->factors() != nullptr)
        for (const fbs::TaskFactor* f : *p->factors()) phase.factors.push_back({f->axis(), f->divisor()});
      r.cuda_plan.phases.push_back(std::move(phase));
    }
  }
  r.plan.pack_symbol = text_of(k.pack_symbol());
  r.plan.packed_bytes = k.packed_bytes();
  r.plan.workspace_bytes = k.workspace_bytes();
  r.cuda_plan.workspace_bytes = r.plan.workspace_bytes;
  r.cuda_plan.sm_count = k.cuda_sm_count();
  r.properties = {k.deterministic(), k.batch_invariant(), k.capturable()};
  const fbs::Provenance& from = *k.provenance();
  r.provenance = {text_of(from.family()), text_of(from.parameters()), text_of(from.session()),
                  text_of(from.compiler()), text_of(from.source_hash())};
  r.source = text_of(k.source());
  r.artefact_sha256 = text_of(k.artefact_sha256());
  r.verdict_json = text_of(k.verdict_json());
  r.fallback_ns = k.fallback_ns();
  r.kernel_ns = k.kernel_ns();
  r.fallback_name = text_of(k.fallback_name());
  r.created_unix_ns = k.created_unix_ns();
  r.served_calls = k.served_calls();
  const Status valid = validate(r);
  if (!valid.ok()) return corrupt(valid.message());
  return r;
}

Result<std::vector<uint8_t>> encode_entry(const KernelRecord& r, const EnvironmentTag& tag) {
  NICHE_RETURN_IF_ERROR(validate(r));
  Miss miss;
  if (!artefact_matches(r, "record '" + r.name + "'", &miss)) return invalid(miss.text);
  const std::vector<uint8_t> payload = encode_record(r);
  if (static_cast<int64_t>(payload.size()) > kPayloadBytesMax)
    return invalid("record '" + r.name + "': " + std::to_string(payload.size()) +
                   " bytes without the artefact");
  const auto header = frame_header(FrameKind::kKernel, tag, payload, r.artefact.size());
  std::vector<uint8_t> bytes;
  bytes.reserve(header.size() + payload.size() + r.artefact.size());
  bytes.insert(bytes.end(), header.begin(), header.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  bytes.insert(bytes.end(), r.artefact.begin(), r.artefact.end());
  return bytes;
}

std::optional<KernelRecord> decode_entry(std::span<const uint8_t> bytes, const EnvironmentTag& tag,
                                         const std::string& where, Miss* miss) {
  const auto frame = parse_frame(bytes, FrameKind::kKernel, tag, where, miss);
  if (!frame) return std::nullopt;
  auto record = decode_record(frame->payload);
  if (!record.ok()) {
    *miss = corrupt_miss(where, record.status().message());
    return std::nullopt;
  }
  const auto artefact = bytes.last(frame->attachment_bytes);
  record->artefact.assign(artefact.begin(), artefact.end());
  if (!artefact_matches(*record, where, miss)) return std::nullopt;
  return std::move(*record);
}

std::optional<KernelRecord> read_entry(const Directory& directory, const std::string& name,
                                       const EnvironmentTag& tag, Part part, Miss* miss) {
  const std::string where = directory.path() + "/" + name;
  Directory::OpenFile file;
  const auto frame = read_frame(directory, name, FrameKind::kKernel, &tag, miss, &file);
  if (!frame) return std::nullopt;
  auto record = decode_record(frame->payload);
  if (!record.ok()) {
    *miss = corrupt_miss(where, record.status().message());
    return std::nullopt;
  }
  if (part == Part::kRecord) return std::move(*record);
  record->artefact.resize(frame->attachment_bytes);
  const Status read =
      directory.read_exactly(file, record->artefact.data(), record->artefact.size(),
                             static_cast<int64_t>(kHeaderBytes + frame->payload.size()), name);
  if (!read.ok()) {
    *miss = miss_of(read);
    return std::nullopt;
  }
  if (!artefact_matches(*record, where, miss)) return std::nullopt;
  return std::move(*record);
}

}  // namespace niche::kernels_cache
