#include "runtime/cli/common.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "evolve/definition_json.h"
#include "runtime/host_environment.h"
#include "runtime/near_name.h"
#include "runtime/ops/user_ops.h"
#include "runtime/torch/worker.h"

namespace niche::cli {

using dispatch::Result;
using dispatch::Status;

void DefinitionFlags::add_to(CLI::App& app) {
  app.add_option("--op", op, "operator, e.g. rms_norm");
  app.add_option("--dtype", dtype, "element type: f32, f16, bf16, i64")->capture_default_str();
  app.add_option("--const", const_axes, "a constant axis, e.g. N=4096 (repeat)")->allow_extra_args(false);
  app.add_option("--attr", attrs, "an attribute, e.g. eps=1e-5 (repeat)")->allow_extra_args(false);
  app.add_option(
         "--definition", file,
         "a JSON Definition instead of the four above; its operator is loaded from it where it is new")
      ->check(CLI::ExistingFile);
  app.add_option("--op-library", op_libraries,
                 "shared object or JSON Definition with further operators (repeat)")
      ->allow_extra_args(false);
  app.add_option("--python", python,
                 "interpreter with torch, for references in Python; default: python3 on PATH")
      ->envname("NICHE_PYTHON_PROGRAM");
}

namespace {

// "no operator 'rms_nrom' is registered; did you mean 'rms_norm'?", else which there are.
Status no_operator(const std::string& name, const dispatch::OpRegistry& ops) {
  std::vector<std::string_view> known;
  for (const auto& op : ops.all()) known.push_back(op->schema()->op);
  std::string text = "no operator '" + name + "' is registered; ";
  if (const std::string_view near = nearest_name(name, known); !near.empty())
    return dispatch::not_found(text + "did you mean '" + std::string(near) + "'?");
  text += "there are:";
  for (const std::string_view k : known) text += ' ' + std::string(k);
  return dispatch::not_found(text + " (--op-library loads others)");
}

// A Definition with a reference, of an operator that is not registered.
Result<bool> defines_its_operator(const std::string& path, const dispatch::OpRegistry& ops) {
  std::ifstream in(path);
  const auto document = nlohmann::json::parse(in, nullptr, false);
  if (!document.is_object()) return dispatch::invalid(path + ": not a JSON object");
  const auto op = document.find("op_type");
  if (op == document.end() || !op->is_string())
    return dispatch::invalid(path + ": no \"op_type\" that names the operator");
  return ops.find(op->get<std::string>()) == nullptr && document.contains("reference");
}

}  // namespace

Result<std::unique_ptr<Workbench>> Workbench::make(const DefinitionFlags& flags, bool references) {
  auto w = std::make_unique<Workbench>();
  NICHE_RETURN_IF_ERROR(register_everything(&w->ops, &w->families));
  for (const std::string& path : flags.op_libraries)
    NICHE_RETURN_IF_ERROR(ops::load_user_ops(path, w->ops, {references, flags.python}));
  w->op_libraries = flags.op_libraries;
  if (!flags.file.empty()) {
    auto own = defines_its_operator(flags.file, w->ops);
    if (!own.ok()) return own.status();
    if (*own) {
      NICHE_RETURN_IF_ERROR(ops::load_user_ops(flags.file, w->ops, {references, flags.python}));
      w->op_libraries.push_back(flags.file);
    }
  }
  return w;
}

namespace {

template <typename Number>
Result<std::vector<std::pair<std::string, Number>>> parse_pairs(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, Number>> out;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    const auto value = equals == std::string::npos
                           ? std::nullopt
                           : parse_number<Number>(std::string_view(text).substr(equals + 1));
    if (equals == 0 || !value) return dispatch::invalid("'" + text + "' is not NAME=NUMBER");
    out.emplace_back(text.substr(0, equals), *value);
  }
  return out;
}

}  // namespace

CLI::Validator device_name() {
  return CLI::Validator(
      [](std::string& text) {
        const std::string_view ordinal =
            text.starts_with("cuda:") ? std::string_view(text).substr(5) : std::string_view();
        const bool cuda = !ordinal.empty() && ordinal.size() <= 3 &&
                          ordinal.find_first_not_of("0123456789") == std::string_view::npos;
        return cuda || text == "cpu" ? std::string()
                                     : "'" + text + "' is no device: it must be cpu or cuda:N";
      },
      "");
}
CLI::Validator thread_count() {
  return CLI::Range(1, static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))));
}

Result<Axes> parse_axes(const std::vector<std::string>& texts) { return parse_pairs<int64_t>(texts); }

Result<std::vector<int64_t>> parse_problem(const std::string& text, const dispatch::Definition& d) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  auto axes = parse_axes(parts);
  if (!axes.ok()) return axes.status();
  const std::string where = "problem '" + text + "' of " + d.name() + ": ";
  std::vector<int64_t> extents;
  for (int i : d.var_axes()) {
    const std::string& name = d.schema().axes[static_cast<size_t>(i)].name;
    const auto named = [&](const auto& a) { return a.first == name; };
    if (std::count_if(axes->begin(), axes->end(), named) > 1)
      return dispatch::invalid(where + "axis '" + name + "' is given twice");
    const auto at = std::find_if(axes->begin(), axes->end(), named);
    if (at == axes->end()) return dispatch::invalid(where + "axis '" + name + "' is missing");
    if (at->second < 1)
      return dispatch::invalid(where + "axis '" + name + "' is " + std::to_string(at->second) +
                               ", at least 1 is possible");
    extents.push_back(at->second);
    axes->erase(at);
  }
  if (!axes->empty())
    return dispatch::invalid(where + "it has no variable axis '" + axes->front().first + "'");
  return extents;
}
Result<Attrs> parse_attrs(const std::vector<std::string>& texts) { return parse_pairs<double>(texts); }

Result<std::shared_ptr<const dispatch::Definition>> Workbench::definition(
    const DefinitionFlags& flags) const {
  if (!flags.file.empty()) {
    std::ifstream in(flags.file);
    std::ostringstream text;
    text << in.rdbuf();
    return evolve::definition_from_json(text.str(), ops);
  }
  if (flags.op.empty()) return dispatch::invalid("which operator? give --op or --definition");
  const auto op = ops.find_shared(flags.op);
  if (!op) return no_operator(flags.op, ops);
  auto dtype = dispatch::parse_dtype(flags.dtype);
  if (!dtype.ok()) return dtype.status();
  auto axes = parse_axes(flags.const_axes);
  if (!axes.ok()) return axes.status();
  auto attrs = parse_attrs(flags.attrs);
  if (!attrs.ok()) return attrs.status();
  return dispatch::Definition::make(op->schema(), *dtype, *axes, *attrs);
}

void CacheFlags::add_to(CLI::App& app) {
  app.add_option("--cache", dir, "cache directory")->envname("NICHE_CACHE_DIR")->required();
  app.add_option("--op-library", op_libraries,
                 "operator libraries that the server loads: part of the key (repeat)");
}

namespace {

// What environments a cache's directory holds, each in a directory of its own.
std::vector<std::filesystem::path> environments_in(const std::string& dir) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ignored))
    if (std::filesystem::exists(entry.path() / "environment.txt", ignored)) found.push_back(entry.path());
  return found;
}

}  // namespace

Result<std::unique_ptr<kernels_cache::KernelCache>> CacheFlags::open(kernels_cache::Access access) const {
  auto environment = host_environment(torch_libraries(), op_libraries, true);
  if (!environment.ok()) return environment.status();
  return open(access, *environment);
}

Result<std::unique_ptr<kernels_cache::KernelCache>> CacheFlags::open(
    kernels_cache::Access access, const kernels_cache::Environment& environment) const {
  kernels_cache::CacheOptions options;
  options.root = dir;
  options.environment = environment;
  options.access = access;
  options.log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  return kernels_cache::KernelCache::open(std::move(options));
}

Result<std::unique_ptr<kernels_cache::KernelCache>> CacheFlags::open_existing() const {
  if (environments_in(dir).empty())
    return dispatch::not_found("cache " + dir + ": no cache of kernels is there");
  auto looked = open(kernels_cache::Access::kReadOnly);
  if (!looked.ok()) return looked.status();
  looked->reset();
  return open(kernels_cache::Access::kReadWrite);
}

Result<std::unique_ptr<kernels_cache::KernelCache>> CacheFlags::open_root() const {
  if (environments_in(dir).empty())
    return dispatch::not_found("cache " + dir + ": no cache of kernels is there");
  return open(kernels_cache::Access::kReadWrite);
}

Status write_out(const std::string& path, std::string_view text) {
  const std::string what = "write " + (path.empty() ? "standard output" : path);
  std::FILE* file = path.empty() ? stdout : std::fopen(path.c_str(), "wb");
  if (file == nullptr) return dispatch::errno_status(what);
  Status s;
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size() || std::fflush(file) != 0)
    s = dispatch::errno_status(what);
  std::clearerr(file);  // said once, by the caller
  if (!path.empty() && std::fclose(file) != 0 && s.ok()) s = dispatch::errno_status(what);
  return s;
}

int printed(int exit_code) {
  std::cout.flush();
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return exit_code;
  return fail(errno != 0 ? dispatch::errno_status("write standard output")
                         : dispatch::io_error("write standard output: not all of it could be written"));
}

int fail(const Status& status) {
  std::fprintf(stderr, "niche: %s\n", status.to_string().c_str());
  return status.code() == dispatch::Code::kInvalid ? 2 : 1;
}

}  // namespace niche::cli
