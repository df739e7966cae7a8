#include "examples/ranker/out_directory.h"

#include <filesystem>
#include <fstream>

namespace ranker {

using niche::dispatch::invalid;
using niche::dispatch::io_error;
using niche::dispatch::Status;
namespace fs = std::filesystem;

Status claim_out_directory(const std::string& path) {
  const fs::path out(path);
  const fs::path marker = out / kDemoMarker;
  std::error_code ec;
  const auto failed = [&] { return io_error("--out " + path + ": " + ec.message()); };
  if (fs::exists(out, ec) && !fs::is_directory(out, ec))
    return invalid("--out " + path + ": not a directory; name a new or an empty one");
  if (ec) return failed();
  fs::create_directories(out, ec);
  if (ec) return failed();
  const bool marked = fs::is_regular_file(fs::symlink_status(marker, ec));
  if (!marked && !fs::is_empty(out, ec) && !ec)
    return invalid(
        "--out " + path + ": it holds files and no " + kDemoMarker +
        ", so no demo made it, and a demo deletes the cache and the reports in its directory; name a new or "
        "an empty one");
  if (!marked) {
    if (!(std::ofstream(marker)
          << "Made by `ranker demo`: its next run with this --out deletes cache, port, report.html, "
             "report.json and server.log here.\n"))
      return io_error("--out " + path + ": cannot write " + marker.string());
    ec.clear();
  }
  for (const char* name : {"cache", "port", "report.html", "report.json", "server.log"}) {
    fs::remove_all(out / name, ec);
    if (ec) return failed();
  }
  return {};
}

}  // namespace ranker
