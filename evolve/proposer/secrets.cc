#include "evolve/proposer/secrets.h"

#include <string.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <vector>

extern char** environ;

namespace niche::evolve::proposer {

dispatch::Result<std::string> read_key(const std::string& file, const char* variable) {
  if (file.empty()) {
    const char* value = std::getenv(variable);
    return std::string(value != nullptr ? value : "");
  }
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) return dispatch::errno_status("key file " + file);
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return dispatch::invalid("key file " + file + ": others may read it; chmod 600 it");
  std::ifstream in(file);
  std::string key;
  std::getline(in, key);
  while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
  if (key.empty() || key.size() > 4096)
    return dispatch::invalid("key file " + file + ": its first line is no key");
  return key;
}

int scrub_environment() {
  std::vector<std::string> names;
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    char* equals = ::strchr(*e, '=');
    if (equals == nullptr) continue;
    const std::string name(*e, static_cast<size_t>(equals - *e));
    bool secret = false;
    for (const char* word : {"KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"})
      secret = secret || name.find(word) != std::string::npos;
    if (!secret) continue;
    ::explicit_bzero(equals + 1, ::strlen(equals + 1));
    names.push_back(name);
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
  return static_cast<int>(names.size());
}

}  // namespace niche::evolve::proposer
