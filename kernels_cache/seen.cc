#include "kernels_cache/seen.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <type_traits>

namespace niche::kernels_cache {
namespace {

using dispatch::Code;
using dispatch::Status;

constexpr const char* kSuffix = ".seen";
constexpr const char* kLock = "merge.lock";

struct SeenHead {
  uint64_t name_bytes;
  uint64_t count;
};
static_assert(std::is_trivially_copyable_v<SeenProblem> && sizeof(SeenHead) == 16);

std::string file_of(const std::string& definition) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string name(16, '0');
  uint64_t hash = dispatch::hash_bytes(definition);
  for (auto at = name.rbegin(); at != name.rend(); ++at, hash >>= 4) *at = kHex[hash & 15];
  return name + kSuffix;
}

bool valid(const SeenProblem& p) {
  return std::all_of(std::begin(p.axes), std::end(p.axes), [](int64_t a) { return a >= 0; }) &&
         dispatch::LayoutClass::from_bits(p.layout).bits() == p.layout && p.constraints <= UINT8_MAX &&
         dispatch::ConstraintSet::from_bits(static_cast<uint8_t>(p.constraints)).bits() == p.constraints &&
         p.last_unix_ns >= 0;
}

auto place(const SeenProblem& p) {
  return std::tuple(p.axes[0], p.axes[1], p.axes[2], p.axes[3], p.axes[4], p.layout, p.constraints);
}
static_assert(dispatch::kMaxVarAxes == 5, "place() compares all axes");

// Each problem once, at its latest time; the one seen last first; at most kProblemsMax.
void settle(std::vector<SeenProblem>* problems) {
  std::sort(problems->begin(), problems->end(), [](const SeenProblem& a, const SeenProblem& b) {
    return place(a) != place(b) ? place(a) < place(b) : a.last_unix_ns > b.last_unix_ns;
  });
  const auto same = [](const SeenProblem& a, const SeenProblem& b) { return place(a) == place(b); };
  problems->erase(std::unique(problems->begin(), problems->end(), same), problems->end());
  std::stable_sort(problems->begin(), problems->end(), [](const SeenProblem& a, const SeenProblem& b) {
    return a.last_unix_ns > b.last_unix_ns;
  });
  problems->resize(std::min(problems->size(), SeenStore::kProblemsMax));
}

}  // namespace

std::vector<uint8_t> encode_seen(const std::string& definition, const std::vector<SeenProblem>& problems) {
  const SeenHead head{definition.size(), problems.size()};
  std::vector<uint8_t> payload(sizeof head + definition.size() + problems.size() * sizeof(SeenProblem));
  std::memcpy(payload.data(), &head, sizeof head);
  std::copy(definition.begin(), definition.end(), payload.begin() + sizeof head);
  if (!problems.empty())
    std::memcpy(payload.data() + sizeof head + definition.size(), problems.data(),
                problems.size() * sizeof(SeenProblem));
  return payload;
}

std::optional<std::vector<SeenProblem>> decode_seen(std::span<const uint8_t> payload,
                                                    const std::string& definition, const std::string& where,
                                                    Miss* miss) {
  const auto corrupt = [&](const char* what) {
    *miss = {MissReason::kCorrupt, where + ": " + what};
    return std::nullopt;
  };
  SeenHead head{};
  if (payload.size() < sizeof head) return corrupt("shorter than its head");
  std::memcpy(&head, payload.data(), sizeof head);
  payload = payload.subspan(sizeof head);
  if (head.count > SeenStore::kProblemsMax || head.name_bytes > payload.size() ||
      payload.size() - head.name_bytes != head.count * sizeof(SeenProblem))
    return corrupt("count does not fit its size");
  const std::string name(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(head.name_bytes));
  if (name != definition) {
    *miss = {MissReason::kForeign, where + ": holds problems of another Definition"};
    return std::nullopt;
  }
  std::vector<SeenProblem> problems(head.count);
  if (head.count > 0)
    std::memcpy(static_cast<void*>(problems.data()), payload.data() + head.name_bytes,
                payload.size() - head.name_bytes);
  if (!std::all_of(problems.begin(), problems.end(), valid)) return corrupt("a problem out of its range");
  return problems;
}

SeenStore::SeenStore(std::optional<Directory> directory, std::optional<Directory> shipped,
                     const EnvironmentTag& tag)
    : directory_(std::move(directory)), shipped_(std::move(shipped)), tag_(tag) {}

std::vector<SeenProblem> SeenStore::read(const std::string& definition, std::vector<Miss>* misses) const {
  std::vector<SeenProblem> all;
  const std::string file = file_of(definition);
  for (const auto* directory : {&directory_, &shipped_}) {
    if (!*directory) continue;
    Miss miss;
    std::optional<std::vector<SeenProblem>> found;
    if (const auto frame = read_frame(**directory, file, FrameKind::kSeen, &tag_, &miss))
      found = decode_seen(frame->payload, definition, (*directory)->path() + "/" + file, &miss);
    if (found)
      all.insert(all.end(), found->begin(), found->end());
    else if (miss.reason != MissReason::kAbsent)
      misses->push_back(std::move(miss));
  }
  settle(&all);
  return all;
}

Status SeenStore::merge(const std::string& definition, std::vector<SeenProblem> problems, int64_t now_unix_ns,
                        std::vector<Miss>* misses) const {
  if (!directory_) return dispatch::unsupported("seen problems: the cache is read-only");
  for (const SeenProblem& p : problems)
    if (!valid(p)) return dispatch::invalid("seen problems of '" + definition + "': one is out of its range");
  Files& files = directory_->files();
  auto fd = files.open(directory_->fd(), kLock, O_RDWR | O_CREAT, 0600);
  if (!fd.ok()) return fd.status();
  const OwnedFd lock(files, *fd);
  const auto locked = files.try_lock(lock.get());
  if (!locked.ok()) return locked.status();
  if (!*locked) return dispatch::busy(directory_->path() + ": another process merges its problems");
  directory_->remove_leftovers(now_unix_ns);
  std::vector<Miss> bad;
  const std::vector<SeenProblem> known = read(definition, &bad);
  misses->insert(misses->end(), bad.begin(), bad.end());
  for (const Miss& m : bad)  // what the disk does not give now may be whole: it is not written over
    if (m.reason == MissReason::kIo) return dispatch::io_error(m.text);
  problems.insert(problems.end(), known.begin(), known.end());
  // A clock that was ahead must not keep its problems in front for ever.
  for (SeenProblem& p : problems) p.last_unix_ns = std::min(p.last_unix_ns, now_unix_ns);
  settle(&problems);
  const std::string file = file_of(definition);
  NICHE_RETURN_IF_ERROR(make_room(file));
  const std::vector<uint8_t> payload = encode_seen(definition, problems);
  const auto header = frame_header(FrameKind::kSeen, tag_, payload, 0);
  return directory_->write_atomic(file, {header, payload});
}

// The file that was written longest ago gives way to a new one.
Status SeenStore::make_room(const std::string& newcomer) const {
  auto names = directory_->list();
  if (!names.ok()) return names.status();
  std::erase_if(*names, [](const std::string& n) { return !n.ends_with(kSuffix); });
  if (names->size() < kFilesMax || std::find(names->begin(), names->end(), newcomer) != names->end())
    return {};
  std::vector<std::pair<int64_t, std::string>> by_age;
  for (const std::string& name : *names) {
    const auto file = directory_->open_file(name);
    by_age.emplace_back(file.ok() ? file->modified_ns : 0, name);  // one that breaks the rules goes first
  }
  std::sort(by_age.begin(), by_age.end());
  for (size_t i = 0; by_age.size() - i >= kFilesMax; ++i) {
    const Status removed = directory_->remove(by_age[i].second);
    if (!removed.ok() && removed.code() != Code::kNotFound) return removed;
  }
  return {};
}

}  // namespace niche::kernels_cache
