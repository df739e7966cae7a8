#include "dispatch/group_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace niche::dispatch {
namespace {

// Little-endian, as every machine of a group is.
class Writer {
 public:
  template <typename T>
  void number(T v) {
    const auto at = bytes.size();
    bytes.resize(at + sizeof v);
    std::memcpy(bytes.data() + at, &v, sizeof v);
  }
  void text(const std::string& s) {
    number(static_cast<uint8_t>(s.size()));
    bytes.insert(bytes.end(), s.begin(), s.end());
  }
  std::vector<uint8_t> bytes;
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  template <typename T>
  T number() {
    T v{};
    if (take(sizeof v)) std::memcpy(&v, bytes_.data() + at_ - sizeof v, sizeof v);
    return v;
  }
  std::string text() {
    const size_t n = number<uint8_t>();
    if (!take(n)) return {};
    return {reinterpret_cast<const char*>(bytes_.data()) + at_ - n, n};
  }
  bool ok() const { return ok_; }
  bool at_end() const { return at_ == bytes_.size(); }
  size_t at() const { return at_; }

 private:
  bool take(size_t n) {
    if (!ok_ || bytes_.size() - at_ < n) return ok_ = false;
    at_ += n;
    return true;
  }
  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

bool same_problem(const GroupChange& a, const GroupChange& b) {
  GroupChange c = a;
  c.kernel = b.kernel;
  return c == b;
}

template <typename Changes>
auto find_problem(Changes& in, const GroupChange& c) {
  const auto at =
      std::find_if(in.begin(), in.end(), [&](const GroupChange& s) { return same_problem(s, c); });
  return at == in.end() ? nullptr : &*at;
}

}  // namespace

std::vector<uint8_t> GroupTable::encode(const GroupProposal& p) {
  Writer w;
  w.number(p.base);
  w.number(static_cast<uint8_t>(p.rollback));
  w.number(static_cast<uint32_t>(p.table.size()));
  for (const GroupChange& c : p.table) {
    w.text(c.definition);
    w.number(c.tenant);
    w.number(c.threads);
    w.number(c.constraints.bits());
    w.number(c.layout.bits());
    for (const int64_t a : c.axes) w.number(a);
    w.text(c.kernel);
    const GroupChange* before = find_problem(p.undo, c);
    w.number(static_cast<uint8_t>(before != nullptr));
    if (before != nullptr) w.text(before->kernel);
  }
  return std::move(w.bytes);
}

Result<GroupProposal> GroupTable::decode(std::span<const uint8_t> payload) {
  Reader r(payload);
  GroupProposal p;
  p.base = r.number<uint64_t>();
  p.rollback = r.number<uint8_t>() != 0;
  const auto n = r.number<uint32_t>();
  if (n == 0 || n > kProblemsMax) return corrupt("group: a payload of " + std::to_string(n) + " problems");
  for (uint32_t i = 0; i < n; ++i) {
    GroupChange c;
    c.definition = r.text();
    c.tenant = r.number<uint32_t>();
    c.threads = r.number<uint32_t>();
    c.constraints = ConstraintSet::from_bits(r.number<uint8_t>());
    c.layout = LayoutClass::from_bits(r.number<uint64_t>());
    for (int64_t& a : c.axes) a = r.number<int64_t>();
    c.kernel = r.text();
    if (r.number<uint8_t>() != 0) {
      p.undo.push_back(c);
      p.undo.back().kernel = r.text();
    }
    if (!r.ok()) return corrupt("group: the payload ends at byte " + std::to_string(r.at()));
    p.table.push_back(std::move(c));
  }
  if (!r.at_end()) return corrupt("group: the payload goes on after byte " + std::to_string(r.at()));
  return p;
}

Result<std::vector<uint8_t>> GroupTable::proposal(std::span<const GroupChange> changes) const {
  if (changes.empty()) return invalid("group: a proposal without changes");
  for (size_t i = 0; i < changes.size(); ++i) {
    const GroupChange& c = changes[i];
    if (c.definition.size() > kNameBytesMax || c.kernel.size() > kNameBytesMax)
      return invalid("group: a name past " + std::to_string(kNameBytesMax) + " bytes: " + c.definition +
                     ", " + c.kernel);
    for (size_t j = 0; j < i; ++j)
      if (same_problem(c, changes[j])) return invalid("group: two changes of one problem of " + c.definition);
  }
  GroupProposal p;
  std::lock_guard lock(mutex_);
  p.base = version_;
  p.table = serving_;
  for (const GroupChange& c : changes) {
    p.undo.push_back(c);
    if (GroupChange* old = find_problem(p.table, c)) {
      p.undo.back() = std::exchange(*old, c);
    } else {
      p.undo.back().kernel.clear();  // the library served
      p.table.push_back(c);
    }
  }
  if (p.table.size() > kProblemsMax)
    return busy("group: " + std::to_string(p.table.size()) + " problems, at most " +
                std::to_string(kProblemsMax));
  return encode(p);
}

Result<std::vector<uint8_t>> GroupTable::rollback() const {
  std::lock_guard lock(mutex_);
  if (undo_.empty()) return not_found("group: no version serves that could be undone");
  GroupProposal p{version_, true, serving_, {}};
  for (const GroupChange& c : undo_) *find_problem(p.table, c) = c;
  return encode(p);
}

Status GroupTable::prepare(uint64_t version, std::span<const uint8_t> payload) {
  auto proposal = decode(payload);
  if (!proposal) return proposal.status();
  std::vector<GroupChange> changes;
  {
    std::lock_guard lock(mutex_);
    // A rank that joins has nothing yet, and takes whatever the others made from whatever.
    if (version_ != 0 && proposal->base != version_)
      return invalid("group: version " + std::to_string(version) + " was made from version " +
                     std::to_string(proposal->base) + ", but " + std::to_string(version_) + " serves");
    for (const GroupChange& c : proposal->table) {
      const GroupChange* old = find_problem(serving_, c);
      if (old == nullptr || old->kernel != c.kernel) changes.push_back(c);
    }
  }
  NICHE_RETURN_IF_ERROR(dispatcher_->publisher().room(changes.size()));
  Prepared p{std::move(proposal->table), std::move(proposal->undo), {}};
  if (proposal->rollback) p.undo.clear();
  for (const GroupChange& c : changes) {
    auto placement = resolve_(c);
    if (!placement) return placement.status();
    NICHE_RETURN_IF_ERROR(dispatcher_->publisher().check(*placement));
    const RolloutState state = placement->route->state();
    if (state != RolloutState::kIncumbent && state != RolloutState::kFallbackOnly)
      return invalid("group: route '" + placement->route->label() + "' is in state " +
                     rollout_state_name(state) + "; a group serves incumbents alone");
    p.placements.push_back(std::move(*placement));
  }
  std::lock_guard lock(mutex_);
  prepared_[version] = std::move(p);
  return {};
}

Status GroupTable::take(uint64_t version) {
  std::lock_guard lock(mutex_);
  const auto it = prepared_.find(version);
  if (it == prepared_.end())
    return not_found("group: version " + std::to_string(version) + " is not prepared here; version " +
                     std::to_string(version_) + " serves on");
  Prepared& p = it->second;
  dispatcher_->publisher().apply(p.placements);
  serving_ = std::move(p.table);
  undo_ = std::move(p.undo);
  version_ = version;
  prepared_.erase(it);
  return {};
}

void GroupTable::drop(uint64_t version) {
  std::lock_guard lock(mutex_);
  prepared_.erase(version);
}

std::vector<GroupChange> GroupTable::serving() const {
  std::lock_guard lock(mutex_);
  return serving_;
}

}  // namespace niche::dispatch
