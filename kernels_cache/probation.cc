#include "kernels_cache/probation.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>

#include "kernels_cache/standing_generated.h"

namespace niche::kernels_cache {
namespace {

using dispatch::Status;
using dispatch::unsupported;

constexpr std::string_view kRunSuffix = ".run", kMarkSuffix = ".mark", kEndSuffix = ".end";
constexpr const char* kScanLock = "scan.lock";

// A mark's name is "<kernel id>@<run>.mark".
std::string mark_file(const KernelId& id, const std::string& run) {
  return id.hex() + "@" + run + std::string(kMarkSuffix);
}

std::string stem(const std::string& name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
}

std::string text_of(const flatbuffers::String* s) { return s == nullptr ? std::string() : s->str(); }

template <typename Table>
std::optional<std::vector<uint8_t>> read_table(const Directory& d, const std::string& name, FrameKind kind,
                                               const EnvironmentTag& tag) {
  Miss miss;
  auto frame = read_frame(d, name, kind, &tag, &miss);
  if (!frame) return std::nullopt;
  flatbuffers::Verifier verifier(frame->payload.data(), frame->payload.size(), 4, 4);
  if (!verifier.VerifyBuffer<Table>(nullptr)) return std::nullopt;
  return std::move(frame->payload);
}

struct DeadRun {
  std::string run;
  OwnedFd lock;  // held until its marks are dealt with, so that no other scan does the same
  bool this_boot = true;
  std::vector<std::string> marks;  // file names
};

}  // namespace

std::string current_boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id;
}

Probation::Probation(std::optional<Directory> directory, const EnvironmentTag& tag, std::string boot_id)
    : directory_(std::move(directory)), tag_(tag), boot_id_(std::move(boot_id)) {}

Probation::~Probation() = default;

Status Probation::write(const std::string& name, FrameKind kind, std::span<const uint8_t> payload) {
  const auto header = frame_header(kind, tag_, payload, 0);
  return directory_->write_atomic(name, {header, payload});
}

std::optional<KernelRef> Probation::read_mark(const std::string& name) const {
  const auto id = KernelId::from_hex(std::string_view(name).substr(0, name.find('@')));
  if (!id) return std::nullopt;
  KernelRef ref{*id, "", ""};
  // A damaged mark still names its kernel.
  if (const auto payload = read_table<fbs::ProbationMark>(*directory_, name, FrameKind::kProbation, tag_)) {
    const auto& m = *flatbuffers::GetRoot<fbs::ProbationMark>(payload->data());
    ref.definition = text_of(m.definition());
    ref.kernel = text_of(m.kernel());
  }
  return ref;
}

StartupReport Probation::startup_scan(StandingStore& standings, int64_t now) {
  const std::lock_guard lock(mutex_);
  StartupReport report;
  if (!directory_) {
    report.explanation = "no writable directory for probation marks";
    return report;
  }
  Files& files = directory_->files();
  auto scan_fd = files.open(directory_->fd(), kScanLock, O_RDWR | O_CREAT, 0600);
  OwnedFd scan_lock = scan_fd.ok() ? OwnedFd(files, *scan_fd) : OwnedFd();
  auto mine = scan_lock ? files.try_lock(scan_lock.get()) : dispatch::Result<bool>(false);
  auto names = directory_->list();
  if (!names.ok()) {
    report.complete = false;
    report.fallbacks_only = true;  // what cannot be read may condemn any kernel
    report.explanation = "probation marks cannot be read (" + names.status().message() + "): fallbacks alone";
    return report;
  }
  if (!mine.ok() || !*mine) {
    report.complete = false;
    for (const std::string& name : *names)
      if (name.ends_with(kMarkSuffix))
        if (auto ref = read_mark(name)) report.held.push_back(std::move(*ref));
    standings.set_suspects(report.held);
    report.explanation = "another process is reading the probation marks; " +
                         std::to_string(report.held.size()) + " marked kernels wait";
    return report;
  }

  standings.set_suspects({});
  directory_->remove_leftovers(now);

  std::map<std::string, DeadRun> dead;
  for (const std::string& name : *names) {
    if (!name.ends_with(kRunSuffix) || stem(name, kRunSuffix) == run_) continue;
    auto fd = files.open(directory_->fd(), name, O_RDWR, 0);
    if (!fd.ok()) continue;
    DeadRun d{stem(name, kRunSuffix), OwnedFd(files, *fd), true, {}};
    auto locked = files.try_lock(d.lock.get());
    if (!locked.ok() || !*locked) continue;  // it lives
    if (const auto payload = read_table<fbs::RunMark>(*directory_, name, FrameKind::kRun, tag_))
      d.this_boot = text_of(flatbuffers::GetRoot<fbs::RunMark>(payload->data())->boot()) == boot_id_;
    dead.emplace(d.run, std::move(d));
  }
  for (const std::string& name : *names) {
    if (!name.ends_with(kMarkSuffix) || name.find('@') == std::string::npos) continue;
    const std::string run = stem(name.substr(name.find('@') + 1), kMarkSuffix);
    auto it = dead.find(run);
    if (it == dead.end()) {
      auto run_mark = files.open(directory_->fd(), run + std::string(kRunSuffix), O_RDONLY, 0);
      if (run_mark.ok()) files.close(*run_mark);
      if (run_mark.status().code() != dispatch::Code::kNotFound) continue;  // it lives
      // A mark without its run: damage. The kernel is held; no end was seen, so none is counted.
      it = dead.emplace(run, DeadRun{run, OwnedFd(), false, {}}).first;
    }
    it->second.marks.push_back(name);
  }

  // Order: the event, then the holds, then the marks go, then the run marks, the one that names the event
  // last. A scan that dies on the way is repeated to the same end.
  std::vector<int64_t> ends;
  const DeadRun* first_here = nullptr;
  for (const auto& [run, d] : dead) {
    report.unclean_ends += static_cast<bool>(d.lock);
    report.machine_restarted |= d.lock && !d.this_boot;
    if (d.this_boot && first_here == nullptr) first_here = &d;
  }
  const std::string event = first_here == nullptr ? "" : first_here->run + std::string(kEndSuffix);
  for (const std::string& name : *names) {
    if (!name.ends_with(kEndSuffix)) continue;
    const auto payload = read_table<fbs::UncleanEnd>(*directory_, name, FrameKind::kUncleanEnd, tag_);
    const int64_t seen = payload ? flatbuffers::GetRoot<fbs::UncleanEnd>(payload->data())->seen_unix_ns() : 0;
    if (seen > now - kUncleanWindowNs && seen <= now) {
      if (name != event) ends.push_back(seen);
    } else {
      const Status removed = directory_->remove(name);
      (void)removed;  // tried again by the next scan
    }
  }
  if (first_here != nullptr) {
    flatbuffers::FlatBufferBuilder b;
    b.Finish(fbs::CreateUncleanEndDirect(b, first_here->run.c_str(), now));
    const Status written = write(event, FrameKind::kUncleanEnd, {b.GetBufferPointer(), b.GetSize()});
    if (!written.ok()) report.explanation = written.message() + "; ";
    ends.push_back(now);
  }
  bool all_saved = true;
  for (auto& [run, d] : dead) {
    for (const std::string& name : d.marks) {
      auto ref = read_mark(name);
      if (!ref) continue;
      const Status held =
          standings.hold(*ref, "on probation in run " + run + ", which did not end cleanly", run, now);
      all_saved &= held.ok();
      report.held.push_back(std::move(*ref));
    }
  }
  if (all_saved) {
    for (auto it = dead.rbegin(); it != dead.rend(); ++it) {
      bool gone = true;
      for (const std::string& name : it->second.marks) gone &= directory_->remove(name).ok();
      if (!gone) break;
      const Status removed = directory_->remove(it->second.run + std::string(kRunSuffix));
      if (!removed.ok() && removed.code() != dispatch::Code::kNotFound) break;
    }
  }

  if (first_here != nullptr && ends.size() >= 2) {
    report.fallbacks_only = true;
    report.fallbacks_only_until_unix_ns = now + kUncleanWindowNs;
  }
  if (!dead.empty()) {
    report.explanation += std::to_string(report.unclean_ends) + " processes did not end cleanly" +
                          (report.machine_restarted ? " (the machine restarted)" : "") + "; " +
                          std::to_string(report.held.size()) +
                          " kernels on probation are held for re-verification";
    if (report.fallbacks_only)
      report.explanation += "; second unclean end within ten minutes: fallbacks alone";
  }
  return report;
}

Status Probation::begin_run(int64_t now) {
  const std::lock_guard lock(mutex_);
  if (!directory_) return unsupported("no writable directory for probation marks");
  if (!run_.empty()) return dispatch::invalid("begin_run called twice");
  std::random_device entropy;
  char run[64];
  std::snprintf(run, sizeof run, "%d-%llx-%08x", static_cast<int>(::getpid()),
                static_cast<unsigned long long>(now), entropy());
  flatbuffers::FlatBufferBuilder b;
  b.Finish(fbs::CreateRunMarkDirect(b, run, boot_id_.c_str(), ::getpid(), now));
  // Locked before it gets the name that scans look for: no scan can take a living process for a dead one.
  const std::string starting = Directory::temporary_name();
  NICHE_RETURN_IF_ERROR(write(starting, FrameKind::kRun, {b.GetBufferPointer(), b.GetSize()}));
  Files& files = directory_->files();
  auto fd = files.open(directory_->fd(), starting, O_RDWR, 0);
  if (!fd.ok()) return fd.status();
  OwnedFd held(files, *fd);
  auto locked = files.try_lock(held.get());
  if (!locked.ok()) return locked.status();
  if (!*locked) return dispatch::busy("run mark " + starting + " is held by another process");
  NICHE_RETURN_IF_ERROR(files.rename(directory_->fd(), starting, std::string(run) + std::string(kRunSuffix)));
  NICHE_RETURN_IF_ERROR(files.sync(directory_->fd()));
  run_lock_ = std::move(held);
  run_ = run;
  return {};
}

Status Probation::mark(const KernelRef& kernel, int64_t now) {
  const std::lock_guard lock(mutex_);
  if (!directory_) return unsupported("no writable directory for probation marks");
  if (run_.empty()) return dispatch::invalid("mark before begin_run");
  if (marked_.contains(kernel.id)) return {};
  flatbuffers::FlatBufferBuilder b;
  b.Finish(
      fbs::CreateProbationMarkDirect(b, kernel.definition.c_str(), kernel.kernel.c_str(), run_.c_str(), now));
  NICHE_RETURN_IF_ERROR(
      write(mark_file(kernel.id, run_), FrameKind::kProbation, {b.GetBufferPointer(), b.GetSize()}));
  marked_.insert(kernel.id);
  return {};
}

Status Probation::clear(const KernelId& id) {
  const std::lock_guard lock(mutex_);
  if (!marked_.contains(id)) return {};
  const Status removed = directory_->remove(mark_file(id, run_));
  if (!removed.ok() && removed.code() != dispatch::Code::kNotFound) return removed;
  marked_.erase(id);
  return {};
}

bool Probation::marked(const KernelId& id) const {
  const std::lock_guard lock(mutex_);
  return marked_.contains(id);
}

Status Probation::end_run() {
  const std::lock_guard lock(mutex_);
  if (run_.empty()) return {};
  Status first;
  for (const KernelId& id : marked_) {
    const Status removed = directory_->remove(mark_file(id, run_));
    if (!removed.ok() && removed.code() != dispatch::Code::kNotFound && first.ok()) first = removed;
  }
  // Marks that stay without a run mark count as a cut-short scan's: the run mark goes only when all of them
  // went.
  if (!first.ok()) return first;
  marked_.clear();
  NICHE_RETURN_IF_ERROR(directory_->remove(run_ + std::string(kRunSuffix)));
  run_.clear();
  run_lock_.reset();
  return {};
}

}  // namespace niche::kernels_cache
