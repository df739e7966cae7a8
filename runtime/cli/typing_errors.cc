#include "runtime/cli/typing_errors.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "runtime/near_name.h"

namespace niche::cli {
namespace {

std::string meant(std::string_view typed, const std::vector<std::string>& known) {
  const std::vector<std::string_view> names(known.begin(), known.end());
  const std::string_view near = nearest_name(typed, names);
  return near.empty() ? "" : "did you mean '" + std::string(near) + "'?";
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* o : app.get_options())
    for (const std::string& name : o->get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* s : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(s->get_name());
  return names;
}

}  // namespace

std::string suggestion(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") return {};
    if (word.starts_with("--")) {
      const std::string name = word.substr(0, word.find('='));
      const std::vector<std::string> known = options_of(*at);
      if (std::find(known.begin(), known.end(), name) == known.end()) return meant(name, known);
      continue;
    }
    const std::vector<std::string> below = subcommands_of(*at);
    if (below.empty() || word.starts_with("-")) continue;
    if (std::find(below.begin(), below.end(), word) == below.end()) return meant(word, below);
    at = at->get_subcommand(word);
  }
  return {};
}

}  // namespace niche::cli
