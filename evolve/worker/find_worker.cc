#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "evolve/worker_client.h"

namespace niche::evolve {
namespace {

namespace fs = std::filesystem;

bool is_program(const fs::path& p) {
  std::error_code ignored;
  return fs::is_regular_file(p, ignored) && ::access(p.c_str(), X_OK) == 0;
}

std::vector<fs::path> path_directories() {
  std::vector<fs::path> out;
  const char* path = std::getenv("PATH");
  std::istringstream parts(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string part; std::getline(parts, part, ':');)
    if (!part.empty()) out.emplace_back(part);
  return out;
}

}  // namespace

dispatch::Result<std::string> find_worker_program(const std::string& configured) {
  std::vector<fs::path> places;
  if (!configured.empty()) {
    // A name with a slash is a file; without one it is looked up as a shell would.
    if (configured.find('/') != std::string::npos)
      places.emplace_back(configured);
    else
      for (const fs::path& dir : path_directories()) places.push_back(dir / configured);
  } else {
    // Beside the library (or the program) that holds this code: lib/libniche.so goes with bin/niche.
    Dl_info info{};
    if (::dladdr(reinterpret_cast<const void*>(&find_worker_program), &info) != 0 &&
        info.dli_fname != nullptr) {
      std::error_code ignored;
      const fs::path here = fs::weakly_canonical(info.dli_fname, ignored).parent_path();
      places.push_back(here / "niche");
      places.push_back(here.parent_path() / "bin" / "niche");
    }
    for (const fs::path& dir : path_directories()) places.push_back(dir / "niche");
  }
  std::string looked;
  for (const fs::path& place : places) {
    if (is_program(place)) return place.string();
    looked += (looked.empty() ? "" : ", ") + place.string();
  }
  return dispatch::not_found("no worker program '" +
                             (configured.empty() ? std::string("niche") : configured) +
                             "'; looked at: " + looked);
}

}  // namespace niche::evolve
