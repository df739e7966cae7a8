#include "kernels_cache/standing.h"

#include <algorithm>

#include "kernels_cache/standing_generated.h"

namespace niche::kernels_cache {
namespace {

using dispatch::Status;

constexpr StandingState kStates[] = {StandingState::kCleared, StandingState::kHeld,
                                     StandingState::kQuarantined};

const char* suffix(StandingState state) {
  switch (state) {
    case StandingState::kCleared:
      return ".cleared";
    case StandingState::kHeld:
      return ".held";
    case StandingState::kQuarantined:
      return ".quarantined";
    case StandingState::kClear:
      break;
  }
  return "";
}

std::string file_of(const KernelId& id, StandingState state) { return id.hex() + suffix(state); }

}  // namespace

const char* standing_name(StandingState state) {
  switch (state) {
    case StandingState::kClear:
      return "clear";
    case StandingState::kCleared:
      return "cleared";
    case StandingState::kHeld:
      return "held";
    case StandingState::kQuarantined:
      return "quarantined";
  }
  return "unknown";
}

KernelRef kernel_ref(const KernelRecord& r) { return {kernel_id(r), r.definition, r.name}; }

StandingStore::StandingStore(std::optional<Directory> directory, std::optional<Directory> shipped,
                             const EnvironmentTag& tag)
    : directory_(std::move(directory)), shipped_(std::move(shipped)), tag_(tag) {}

Status StandingStore::refresh() {
  const std::lock_guard lock(mutex_);
  std::unordered_map<KernelId, StandingState, KernelIdHash> found;
  for (const auto* directory : {&directory_, &shipped_}) {
    if (!*directory) continue;
    auto names = (*directory)->list();
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      const size_t dot = name.find('.');
      const auto id = KernelId::from_hex(std::string_view(name).substr(0, dot));
      if (dot == std::string::npos || !id) continue;
      for (StandingState s : kStates)
        if (name.compare(dot, std::string::npos, suffix(s)) == 0) found[*id] = std::max(found[*id], s);
    }
  }
  states_ = std::move(found);
  std::vector<Change> pending;
  for (const auto& [id, change] : unsaved_) pending.push_back(change);
  for (const Change& change : pending) {
    StandingState& known = states_[change.kernel.id];
    known = std::max(known, change.state);
    if (write(change).ok()) unsaved_.erase(change.kernel.id);
  }
  return {};
}

StandingState StandingStore::state(const KernelId& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = states_.find(id);
  const StandingState known = it == states_.end() ? StandingState::kClear : it->second;
  return suspects_.contains(id) ? std::max(known, StandingState::kHeld) : known;
}

void StandingStore::set_suspects(const std::vector<KernelRef>& kernels) {
  const std::lock_guard lock(mutex_);
  suspects_.clear();
  for (const KernelRef& k : kernels) suspects_.insert(k.id);
}

Status StandingStore::quarantine(const KernelRef& kernel, const std::string& reason, int64_t now) {
  const std::lock_guard lock(mutex_);
  return apply({kernel, StandingState::kQuarantined, reason, "", 0, now});
}

Status StandingStore::hold(const KernelRef& kernel, const std::string& reason, const std::string& run,
                           int64_t now) {
  const std::lock_guard lock(mutex_);
  const auto it = states_.find(kernel.id);
  const StandingState state = it == states_.end() ? StandingState::kClear : it->second;
  if (state == StandingState::kQuarantined) return {};
  std::string last_run;
  const int times = state == StandingState::kClear ? 0 : read(kernel.id, state, &last_run).times_held;
  if (state == StandingState::kHeld && last_run == run) return {};
  if (times + 1 >= kHoldsMax)
    return apply({kernel, StandingState::kQuarantined,
                  "held " + std::to_string(times + 1) + " times: " + reason, run, times + 1, now});
  return apply({kernel, StandingState::kHeld, reason, run, times + 1, now});
}

Status StandingStore::apply(const Change& change) {
  states_[change.kernel.id] = change.state;
  const Status written = write(change);
  if (written.ok())
    unsaved_.erase(change.kernel.id);
  else
    unsaved_.insert_or_assign(change.kernel.id, change);
  return written;
}

Status StandingStore::clear_hold(const KernelRef& kernel, int64_t now) {
  const std::lock_guard lock(mutex_);
  const auto it = states_.find(kernel.id);
  if (it == states_.end() || it->second != StandingState::kHeld)
    return dispatch::not_found("kernel '" + kernel.kernel + "' is not held");
  std::string last_run;
  const int times = std::max(1, read(kernel.id, StandingState::kHeld, &last_run).times_held);
  NICHE_RETURN_IF_ERROR(
      write({kernel, StandingState::kCleared, "passed re-verification", last_run, times, now}));
  const Status removed = directory_->remove(file_of(kernel.id, StandingState::kHeld));
  if (!removed.ok() && removed.code() != dispatch::Code::kNotFound) return removed;
  it->second = StandingState::kCleared;
  unsaved_.erase(kernel.id);  // a hold that the disk refused must not come back with the next refresh()
  return {};
}

Status StandingStore::adopt(const StandingStore& from) {
  Status first;
  for (const Standing& s : from.list()) {
    if (s.state < StandingState::kHeld) continue;
    const std::lock_guard lock(mutex_);
    const auto known = states_.find(s.id);
    if (known != states_.end() && known->second >= s.state) continue;
    const Status taken =
        apply({{s.id, s.definition, s.kernel}, s.state, s.reason, "", s.times_held, s.when_unix_ns});
    if (first.ok()) first = taken;
  }
  return first;
}

Status StandingStore::forget(const KernelId& id) {
  const std::lock_guard lock(mutex_);
  if (!directory_) return dispatch::unsupported("the cache is read-only");
  for (StandingState s : kStates) {
    const Status removed = directory_->remove(file_of(id, s));
    if (!removed.ok() && removed.code() != dispatch::Code::kNotFound) return removed;
  }
  states_.erase(id);
  unsaved_.erase(id);
  return {};
}

Status StandingStore::write(const Change& c) {
  if (!directory_)
    return dispatch::unsupported("kernel '" + c.kernel.kernel + "' is " + standing_name(c.state) +
                                 " in this process alone: the cache is read-only");
  make_room(c.kernel.id);
  flatbuffers::FlatBufferBuilder b;
  b.Finish(fbs::CreateStandingDirect(b, c.kernel.definition.c_str(), c.kernel.kernel.c_str(),
                                     static_cast<uint8_t>(c.state), c.reason.c_str(), c.when_unix_ns,
                                     c.times_held, c.run.c_str()));
  const std::span<const uint8_t> payload(b.GetBufferPointer(), b.GetSize());
  const auto header = frame_header(FrameKind::kStanding, tag_, payload, 0);
  return directory_->write_atomic(file_of(c.kernel.id, c.state), {header, payload});
}

Standing StandingStore::read(const KernelId& id, StandingState state, std::string* last_run) const {
  Standing s;
  s.id = id;
  s.state = state;
  s.times_held = state == StandingState::kHeld ? 1 : 0;
  Miss miss;
  std::optional<Frame> frame;
  for (const auto* directory : {&directory_, &shipped_})
    if (*directory && !frame)
      frame = read_frame(**directory, file_of(id, state), FrameKind::kStanding, &tag_, &miss);
  if (!frame) return s;
  flatbuffers::Verifier verifier(frame->payload.data(), frame->payload.size(), 4, 4);
  if (!verifier.VerifyBuffer<fbs::Standing>(nullptr)) return s;
  const auto& t = *flatbuffers::GetRoot<fbs::Standing>(frame->payload.data());
  const auto text = [](const flatbuffers::String* v) { return v == nullptr ? std::string() : v->str(); };
  s.definition = text(t.definition());
  s.kernel = text(t.kernel());
  s.reason = text(t.reason());
  s.when_unix_ns = t.when_unix_ns();
  s.times_held = t.times_held();
  if (last_run != nullptr) *last_run = text(t.last_run());
  return s;
}

std::optional<Standing> StandingStore::find(const KernelId& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = states_.find(id);
  if (it == states_.end()) return std::nullopt;
  return read(id, it->second, nullptr);
}

std::vector<Standing> StandingStore::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<Standing> all;
  for (const auto& [id, state] : states_) all.push_back(read(id, state, nullptr));
  std::sort(all.begin(), all.end(), [](const Standing& a, const Standing& b) {
    return a.when_unix_ns != b.when_unix_ns ? a.when_unix_ns < b.when_unix_ns : a.id < b.id;
  });
  return all;
}

void StandingStore::make_room(const KernelId& newcomer) {
  if (states_.size() <= kStandingMax) return;
  // Rare (16,384 condemned kernels in one environment); a tenth goes at once, so that the next writes are
  // cheap.
  std::vector<Standing> all;
  for (const auto& [id, state] : states_)
    if (id != newcomer) all.push_back(read(id, state, nullptr));
  std::sort(all.begin(), all.end(), [](const Standing& a, const Standing& b) {
    const bool ac = a.state <= StandingState::kCleared, bc = b.state <= StandingState::kCleared;
    return ac != bc ? ac : a.when_unix_ns < b.when_unix_ns;
  });
  all.resize(std::min(all.size(), kStandingMax / 10));
  for (const Standing& s : all) {
    for (StandingState state : kStates) {
      const Status removed = directory_->files().remove(directory_->fd(), file_of(s.id, state));
      (void)removed;  // most are not there
    }
    states_.erase(s.id);
    unsaved_.erase(s.id);
    ++dropped_;
  }
}

uint64_t StandingStore::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace niche::kernels_cache
