#include "kernels_cache/home.h"

#include <utility>

#include "kernels_cache/index.h"

namespace niche::kernels_cache {
namespace {

using dispatch::Result;

constexpr const char* kEnvironmentFile = "environment.txt";
constexpr int64_t kEnvironmentBytesMax = 64 << 10;

std::string running_half(const std::string& canonical_text) {
  return canonical_text.substr(0, canonical_text.rfind("compiler: "));
}

Result<std::string> read_environment(const Directory& home) {
  auto bytes = home.read(kEnvironmentFile, kEnvironmentBytesMax);
  if (!bytes.ok()) return bytes.status();
  return std::string(bytes->begin(), bytes->end());
}

int64_t index_time(const Directory& home) {
  auto file = home.open_file(kIndexFile);
  return file.ok() ? file->modified_ns : 0;
}

struct Choice {
  std::string name, environment_text;
};

Choice choose(const Directory& root, const Environment& env) {
  Choice best{env.directory_name(), env.canonical_text()};
  if (!env.compiler.empty()) return best;
  auto names = root.list();
  if (!names.ok()) return best;
  const std::string wanted = running_half(best.environment_text);
  int64_t best_time = -1;
  for (const std::string& name : *names) {
    if (!name.starts_with(env.running_prefix())) continue;
    auto home = root.child(name, Access::kReadOnly);
    if (!home.ok()) continue;
    auto text = read_environment(*home);
    if (!text.ok() || running_half(*text) != wanted) continue;
    const int64_t t = index_time(*home);
    if (t > best_time) {
      best = {name, std::move(*text)};
      best_time = t;
    }
  }
  return best;
}

// Which others are there, and what makes them others: most often an operator library that was not named.
std::string others_in(const Directory& root, const std::string& ours, bool any_compiler) {
  const auto compared = [&](const std::string& text) { return any_compiler ? running_half(text) : text; };
  constexpr int kShown = 3;
  auto names = root.list();
  if (!names.ok()) return {};
  std::string text;
  int others = 0;
  for (const std::string& name : *names) {
    auto home = root.child(name, Access::kReadOnly);
    if (!home.ok()) continue;
    const auto theirs = read_environment(*home);
    if (!theirs.ok() || ++others > kShown) continue;
    text.append(others == 1 ? " " : "; ")
        .append(name)
        .append(": ")
        .append(describe_difference(compared(*theirs), compared(ours)));
  }
  if (others > kShown) text += "; and " + std::to_string(others - kShown) + " more";
  return text.empty() ? text : "; other environments are there (theirs != ours):" + text;
}

}  // namespace

Result<Home> open_home(const Directory& root, const Environment& environment, Access access) {
  Choice chosen = choose(root, environment);
  auto directory = root.child(chosen.name, access);
  if (directory.status().code() == dispatch::Code::kNotFound)
    return dispatch::not_found(root.path() + ": nothing of this environment (" + chosen.name +
                               ") is there yet" +
                               others_in(root, chosen.environment_text, environment.compiler.empty()));
  if (!directory.ok()) return directory.status();
  // The text is for people and for processes without a compiler; what makes an entry ours is the tag inside
  // it. So a damaged text is written again, and no reason to lose the cache.
  const auto text = read_environment(*directory);
  if (access == Access::kReadWrite && (!text.ok() || *text != chosen.environment_text)) {
    const std::string& t = chosen.environment_text;
    NICHE_RETURN_IF_ERROR(
        directory->write_atomic(kEnvironmentFile, {{reinterpret_cast<const uint8_t*>(t.data()), t.size()}}));
  }
  return Home{std::move(*directory), std::move(chosen.environment_text)};
}

}  // namespace niche::kernels_cache
