#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "evolve/proposer/local_proposers.h"

namespace niche::evolve::proposer {
namespace {

using dispatch::Result;
using dispatch::Status;
using SteadyClock = std::chrono::steady_clock;

Status write_file(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out || ::rename(part.c_str(), path.c_str()) != 0)
    return dispatch::errno_status("mailbox: write " + path);
  return {};
}

// For people: the same in the order in which one reads.
std::string readable(const ProposalRequest& r) {
  std::string text = "# " + r.task + ": " + r.id + "\n\nAnswer in " + r.id +
                     ".reply.md beside this file.\n\n" + r.stable + "\n\n---\n\n" + r.prompt + '\n';
  return text;
}

constexpr const char* kReplySuffixes[] = {".reply.json", ".reply.md", ".reply.txt", ".reply.cc"};

struct Seen {
  std::string path;
  off_t bytes;
  int64_t modified_ns;
  bool operator==(const Seen&) const = default;
};

}  // namespace

Result<ProposalReply> MailboxProposer::propose(const ProposalRequest& request) {
  struct stat info {};
  if (::stat(dir_.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return dispatch::unsupported("mailbox " + dir_ + ": no such folder");
  const std::string base = dir_ + '/' + request.id;
  for (const char* suffix : kReplySuffixes)
    if (const std::string path = base + suffix;
        ::rename(path.c_str(), (path + ".old").c_str()) != 0 && errno != ENOENT)
      return dispatch::errno_status("mailbox: put aside the old " + path);
  NICHE_RETURN_IF_ERROR(write_file(base + ".request.json", request_to_json(request) + '\n'));
  NICHE_RETURN_IF_ERROR(write_file(base + ".request.md", readable(request)));
  const auto over = [&](Result<ProposalReply> result) {
    for (const char* suffix : {".request.json", ".request.md"}) ::unlink((base + suffix).c_str());
    return result;
  };
  const auto start = SteadyClock::now();
  std::optional<Seen> last;
  auto since = start;
  for (;;) {
    std::optional<Seen> now;
    for (const char* suffix : kReplySuffixes)
      if (const std::string path = base + suffix; !now && ::stat(path.c_str(), &info) == 0)
        now = {path, info.st_size, int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
    const auto at = SteadyClock::now();
    if (now != last) last = now, since = at;
    if (last && std::chrono::duration<double>(at - since).count() >= settle_seconds_) {
      std::ifstream in(last->path, std::ios::binary);
      std::string text(kReplyTextBytesMax + 1, '\0');
      in.read(text.data(), static_cast<std::streamsize>(text.size()));
      text.resize(static_cast<size_t>(in.gcount()));
      return over(reply_from_text(text, request));
    }
    if (std::chrono::duration<double>(at - start).count() > request.seconds_max)
      return over(dispatch::busy("mailbox " + dir_ + ": no reply to " + request.id + " within " +
                                 std::to_string(static_cast<int>(request.seconds_max)) + " s"));
    if (options_.keep_going && !options_.keep_going()) return over(dispatch::busy("mailbox: stopped"));
    std::this_thread::sleep_for(std::chrono::milliseconds(last ? 20 : 200));
  }
}

}  // namespace niche::evolve::proposer
