#include "evolve/judge/oracle_server.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>

#include "dispatch/base/hash.h"

namespace niche::evolve::judge {
namespace {

using dispatch::ArgRole;
using dispatch::Status;

std::array<void*, dispatch::kMaxArgs> pointers(
    std::array<std::vector<uint8_t>, dispatch::kMaxArgs>& buffers) {
  std::array<void*, dispatch::kMaxArgs> p{};
  for (size_t i = 0; i < buffers.size(); ++i) p[i] = buffers[i].empty() ? nullptr : buffers[i].data();
  return p;
}

// An empty argument is still a pointer: one spare byte.
void size_buffer(std::vector<uint8_t>& v, int64_t bytes) {
  v.assign(static_cast<size_t>(std::max<int64_t>(1, bytes)), 0);
}

void copy_text(char (&to)[kTextBytes], const std::string& from) {
  std::snprintf(to, sizeof to, "%s", from.c_str());
}

}  // namespace

uint32_t poison_word(uint32_t poison) {
  const uint32_t noise = static_cast<uint32_t>(dispatch::mix64(poison + 1)) & 0x001f001f;
  return (poison % 2 == 0 ? 0x7fa07fa0U : 0x3c403c40U) ^ noise;
}

void fill_poison(SharedArena& arena, const Placement& p, uint32_t poison, bool whole) {
  const uint32_t word = poison_word(poison);
  const auto fill = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) *arena.at(i) = reinterpret_cast<const uint8_t*>(&word)[i % 4];
  };
  if (!whole) {
    fill(p.region, p.at);
    fill(p.at + p.bytes, p.region + p.region_bytes);
    return;
  }
  auto* words = reinterpret_cast<uint32_t*>(arena.at(p.region));
  std::fill(words, words + p.region_bytes / 4, word);
}

int64_t changed_slack(const SharedArena& arena, const Placement& p, uint32_t poison) {
  const uint32_t word = poison_word(poison);
  const auto differs = [&](int64_t i) {
    return *arena.at(i) != reinterpret_cast<const uint8_t*>(&word)[i % 4];
  };
  // Nearest first: an overrun by one element is the usual case.
  for (int64_t i = p.at + p.bytes; i < p.region + p.region_bytes; ++i)
    if (differs(i)) return i - p.at;
  for (int64_t i = p.at - 1; i >= p.region; --i)
    if (differs(i)) return i - p.at;
  return INT64_MIN;
}

int64_t OracleCase::bytes() const {
  size_t n = sizeof(OracleCase);
  for (const auto* group : {&inputs, &reference, &fallback})
    for (const auto& v : *group) n += v.capacity();
  return static_cast<int64_t>(n);
}

OracleServer::OracleServer(std::shared_ptr<const dispatch::OpSpec> op,
                           std::shared_ptr<const dispatch::Definition> definition, SharedArena* arena,
                           int64_t cache_bytes, DefencesOff off)
    : op_(std::move(op)),
      definition_(std::move(definition)),
      arena_(arena),
      cache_bytes_(cache_bytes),
      off_(off),
      tolerance_(op_->tolerance(*definition_)) {}

void OracleServer::serve(int channel) {
  while (wait_for_command(channel)) {
    const OracleCommand command = *arena_->mailbox<OracleCommand>(kOracleCommandAt);
    auto* reply = arena_->mailbox<OracleReply>(kOracleReplyAt);
    *reply = {};
    Finding finding;
    Status status;
    // The library's exceptions end here: they are the operator's failure, not the oracle's.
    try {
      switch (command.kind) {
        case OracleCommand::kPrepare:
          status = prepare(command);
          break;
        case OracleCommand::kRefer:
          status = refer(command);
          break;
        default:
          status = check(command, finding);
      }
    } catch (const std::exception& e) {
      status = dispatch::device_error(definition_->name() + ": " + e.what());
    }
    reply->failed = status.ok() ? 0 : 1;
    reply->wrong = finding.ok ? 0 : 1;
    reply->gate = static_cast<uint32_t>(finding.gate);
    reply->max_error = finding.max_error;
    reply->rms_error = finding.rms_error;
    copy_text(reply->text, status.ok() ? finding.reason : status.message());
    answer(channel);
  }
}

dispatch::Result<OracleCase*> OracleServer::find(const CaseId& id) {
  for (auto it = cases_.begin(); it != cases_.end(); ++it)
    if (it->id == id) {
      cases_.splice(cases_.begin(), cases_, it);
      return &cases_.front();
    }
  OracleCase k;
  k.id = id;
  k.problem.definition = definition_;
  k.problem.axes = id.axes;
  NICHE_RETURN_IF_ERROR(make_case_inputs(*op_, k.problem, id, &k.inputs));
  cases_.push_front(std::move(k));
  int64_t kept = 0;
  for (auto it = cases_.begin(); it != cases_.end();) {
    kept += it->bytes();
    it = it != cases_.begin() && kept > cache_bytes_ ? cases_.erase(it) : std::next(it);
  }
  return &cases_.front();
}

void OracleServer::fill(const OracleCase& k, const RunBuffers& run) {
  for (int i = 0; i < arg_count(); ++i) {
    const Placement& p = run.arg[static_cast<size_t>(i)];
    if (p.region_bytes == 0) continue;
    const bool out = spec(i).role == ArgRole::kOut;
    fill_poison(*arena_, p, run.poison, out);
    if (!out)
      std::memcpy(arena_->at(p.at), k.inputs[static_cast<size_t>(i)].data(), static_cast<size_t>(p.bytes));
  }
}

Status OracleServer::prepare(const OracleCommand& c) {
  auto k = find(c.id);
  if (!k.ok()) return k.status();
  for (int r = 0; r < c.runs; ++r) fill(**k, c.run[r]);
  return {};
}

Status OracleServer::refer(const OracleCommand& c) {
  auto k = find(c.id);
  return k.ok() ? refer(**k, c.form) : k.status();
}

Status OracleServer::refer(OracleCase& k, int form) {
  auto inputs = pointers(k.inputs);
  if (!k.referenced) {
    for (int i = 0; i < arg_count(); ++i)
      if (present(i) && spec(i).role != ArgRole::kIn)
        size_buffer(k.reference[static_cast<size_t>(i)], reference_bytes(k.problem, i));
    const HostArgs args(k.problem, inputs.data());
    const auto p = pointers(k.reference);
    NICHE_RETURN_IF_ERROR(
        op_->reference(k.problem, args.tensors(), HostArgs::outputs(k.problem, p.data()).tensors()));
    k.referenced = true;
  }
  if (k.form == form) return {};
  for (int i = 0; i < arg_count(); ++i) {
    auto& f = k.fallback[static_cast<size_t>(i)];
    if (!present(i) || spec(i).role == ArgRole::kIn) continue;
    if (spec(i).role == ArgRole::kInOut)
      f = k.inputs[static_cast<size_t>(i)];
    else
      size_buffer(f, k.problem.arg_bytes(i));
  }
  KernelArgs call(*definition_, k.problem.axes.data());
  const auto outputs = pointers(k.fallback);
  for (size_t i = 0; i < outputs.size(); ++i) call.p[i] = outputs[i] != nullptr ? outputs[i] : inputs[i];
  op_->run_fallback(form, {definition_.get(), &call.args, nullptr});
  k.form = form;
  for (int i = 0; i < arg_count(); ++i) {
    const auto a = static_cast<size_t>(i);
    if (!present(i) || spec(i).role == ArgRole::kIn) continue;
    const auto shape = k.problem.arg_shape(i);
    const OutputView v{definition_->arg_dtype(i), k.problem.arg_elements(i), shape.empty() ? 1 : shape.back(),
                       k.reference[a].data()};
    k.yardstick[a] = fallback_error(v, k.fallback[a].data());
  }
  return {};
}

std::string OracleServer::place(const OracleCase& k) const {
  return " at " + k.problem.to_string() + " (distribution " + std::to_string(k.id.distribution) + " '" +
         std::string(op_->distribution_name(k.id.distribution)) + "')";
}

std::string OracleServer::untouched(const OracleCase& k, const RunBuffers& run) const {
  for (int i = 0; i < arg_count(); ++i) {
    const Placement& p = run.arg[static_cast<size_t>(i)];
    if (p.region_bytes == 0) continue;
    const int64_t slack = changed_slack(*arena_, p, run.poison);
    if (slack != INT64_MIN)
      return "wrote out of bounds: byte " + std::to_string(slack) + " of '" + spec(i).name + "', which has " +
             std::to_string(p.bytes);
    if (spec(i).role == ArgRole::kIn && !off_.has(Defence::kReadOnlyInputs) &&
        std::memcmp(arena_->at(p.at), k.inputs[static_cast<size_t>(i)].data(),
                    static_cast<size_t>(p.bytes)) != 0)
      return "changed input '" + spec(i).name + "'";
  }
  return "";
}

void OracleServer::compare_runs(const OracleCommand& c, int arg, int64_t elements, Finding& f) const {
  const auto width = static_cast<int64_t>(dispatch::dtype_bytes(definition_->arg_dtype(arg)));
  const Placement& pa = c.run[0].arg[static_cast<size_t>(arg)];
  const Placement& pb = c.run[1].arg[static_cast<size_t>(arg)];
  const uint8_t *a = arena_->at(pa.at), *b = arena_->at(pb.at);
  if (std::memcmp(a, b, static_cast<size_t>(elements * width)) == 0) return;
  const auto poisoned = [&](const Placement& p, uint32_t poison, int64_t i) {
    const uint32_t word = poison_word(poison);
    for (int64_t j = 0; j < width; ++j)
      if (*arena_->at(p.at + i * width + j) !=
          reinterpret_cast<const uint8_t*>(&word)[(p.at + i * width + j) % 4])
        return false;
    return true;
  };
  for (int64_t i = 0; i < elements; ++i) {
    if (std::memcmp(a + i * width, b + i * width, static_cast<size_t>(width)) == 0) continue;
    const bool unwritten = spec(arg).role == ArgRole::kOut && poisoned(pa, c.run[0].poison, i) &&
                           poisoned(pb, c.run[1].poison, i);
    if (!unwritten && c.deterministic == 0) continue;
    f.ok = false;
    f.gate = unwritten ? Gate::kCorrectness : Gate::kDeterminism;
    f.reason =
        "output '" + spec(arg).name + "' element " + std::to_string(i) + " of " + std::to_string(elements) +
        (unwritten ? " not written"
                   : " differs between two runs (other buffers, contents before the call, split of tasks)");
    return;
  }
}

void OracleServer::compare_reference(const OracleCase& k, const RunBuffers& run, int arg, int64_t elements,
                                     Finding& f) const {
  const auto a = static_cast<size_t>(arg);
  const auto shape = k.problem.arg_shape(arg);
  const OutputView v{definition_->arg_dtype(arg), elements, shape.empty() ? 1 : shape.back(),
                     k.reference[a].data()};
  const Comparison c =
      compare_output(v, arena_->at(run.arg[a].at), k.fallback[a].data(), k.yardstick[a], tolerance_);
  f.max_error = std::max(f.max_error, c.max_error);
  f.rms_error = std::max(f.rms_error, c.rms_error);
  if (c.ok || !f.ok || off_.has(Defence::kErrorBound)) return;
  f.ok = false;
  f.gate = Gate::kCorrectness;
  f.reason = "output '" + spec(arg).name + "' " + c.reason;
}

Status OracleServer::check(const OracleCommand& c, Finding& f) {
  auto found = find(c.id);
  if (!found.ok()) return found.status();
  OracleCase& k = **found;
  NICHE_RETURN_IF_ERROR(refer(k, c.form));
  for (int r = 0; r < c.runs && f.ok; ++r) {
    const std::string touched = untouched(k, c.run[r]);
    if (touched.empty()) continue;
    f.ok = false;
    f.reason = touched;
  }
  std::array<void*, dispatch::kMaxArgs> p{};
  for (int i = 0; i < arg_count(); ++i)
    if (c.run[0].arg[static_cast<size_t>(i)].region_bytes != 0)
      p[static_cast<size_t>(i)] = arena_->at(c.run[0].arg[static_cast<size_t>(i)].at);
  const HostArgs args(k.problem, p.data());
  for (int i = 0; i < arg_count() && f.ok; ++i) {
    if (!present(i) || spec(i).role == ArgRole::kIn) continue;
    // Outputs of a candidate may say anything about their own size: clamped.
    const int64_t elements = std::clamp<int64_t>(op_->written_elements(k.problem, i, args.tensors()), 0,
                                                 k.problem.arg_elements(i));
    if (c.runs == 2 && !off_.has(Defence::kTwoRuns)) compare_runs(c, i, elements, f);
    for (int r = 0; r < c.runs && f.ok; ++r)
      if (r == 0 || c.deterministic == 0) compare_reference(k, c.run[r], i, elements, f);
  }
  if (!f.ok) f.reason += place(k);
  return {};
}

}  // namespace niche::evolve::judge
