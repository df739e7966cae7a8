#include "evolve/judge/oracle.h"

#include "evolve/judge/oracle_server.h"

namespace niche::evolve::judge {
namespace {

// A reference in double precision may be hundreds of times slower than the operator.
constexpr CallLimits kOracleLimits{60, 1200};

}  // namespace

dispatch::Result<std::unique_ptr<Oracle>> Oracle::make(std::shared_ptr<const dispatch::OpSpec> op,
                                                       std::shared_ptr<const dispatch::Definition> definition,
                                                       SharedArena* arena, std::function<void()> start,
                                                       int64_t cache_bytes, DefencesOff off) {
  auto o = std::unique_ptr<Oracle>(new Oracle());
  o->arena_ = arena;
  auto child = Child::fork([&](int channel) {
    if (start) start();
    OracleServer(op, definition, arena, cache_bytes, off).serve(channel);
  });
  if (!child.ok()) return child.status();
  o->child_ = std::move(*child);
  return o;
}

dispatch::Status Oracle::call(OracleCommand::Kind kind, const CaseId& id, std::span<const RunBuffers> runs) {
  auto* c = arena_->mailbox<OracleCommand>(kOracleCommandAt);
  c->kind = kind;
  c->id = id;
  c->runs = static_cast<int32_t>(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) c->run[i] = runs[i];
  switch (child_->call(kOracleLimits)) {
    case CallEnd::kAnswered:
      break;
    case CallEnd::kDied:
      return dispatch::device_error("the operator's inputs, reference or fallback died: " +
                                    child_->end_text());
    case CallEnd::kHung:
      return dispatch::device_error("the operator's inputs, reference or fallback took more than 60 s");
  }
  const auto* reply = arena_->mailbox<OracleReply>(kOracleReplyAt);
  return reply->failed != 0 ? dispatch::device_error(reply->text) : dispatch::Status();
}

dispatch::Status Oracle::prepare(const CaseId& id, std::span<const RunBuffers> runs) {
  return call(OracleCommand::kPrepare, id, runs);
}

dispatch::Status Oracle::refer(const CaseId& id, int form) {
  arena_->mailbox<OracleCommand>(kOracleCommandAt)->form = form;
  return call(OracleCommand::kRefer, id, {});
}

dispatch::Result<Finding> Oracle::check(const CaseId& id, int form, std::span<const RunBuffers> runs,
                                        bool deterministic) {
  auto* c = arena_->mailbox<OracleCommand>(kOracleCommandAt);
  c->form = form;
  c->deterministic = deterministic ? 1 : 0;
  NICHE_RETURN_IF_ERROR(call(OracleCommand::kCheck, id, runs));
  const auto* reply = arena_->mailbox<OracleReply>(kOracleReplyAt);
  Finding f;
  f.id = id;
  f.ok = reply->wrong == 0;
  f.gate = static_cast<Gate>(reply->gate);
  f.max_error = reply->max_error;
  f.rms_error = reply->rms_error;
  f.reason = reply->text;
  return f;
}

}  // namespace niche::evolve::judge
