#include "evolve/python/find_python.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace niche::evolve::python {
namespace {

bool executable(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

dispatch::Result<std::string> find_python(const std::string& configured) {
  const std::string name = configured.empty() ? "python3" : configured;
  if (name.find('/') != std::string::npos) {
    if (executable(name)) return std::filesystem::absolute(name).string();
    return dispatch::not_found("no Python: python_program is '" + name + "', which is no program");
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty() && executable(folder + "/" + name)) return folder + "/" + name;
  return dispatch::not_found(
      "no Python: " + (configured.empty() ? "python_program is empty, and" : std::string("python_program")) +
      " '" + name + "' is not on PATH (" + folders.str() + ")");
}

}  // namespace niche::evolve::python
