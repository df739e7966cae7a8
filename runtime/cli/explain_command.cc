// `niche explain`: which kernel would serve a problem from this cache, and why. `niche config`: the keys of a
// config.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "runtime/cli/common.h"
#include "runtime/torch/torch.h"

extern char** environ;

namespace niche::cli {
namespace {

struct Options {
  DefinitionFlags definition;
  std::string cache;
  std::vector<std::string> axes;
  bool json = false;
};

// What a Runtime says of its cache, the explanation says as well; entries that were refused are told here.
class EntriesOnly final : public dispatch::LogSink {
 public:
  void write(dispatch::LogLevel, std::string_view part, std::string_view text) override {
    if (part == "kernels_cache")
      std::fprintf(stderr, "niche: %.*s\n", static_cast<int>(text.size()), text.data());
  }
};

int run(const Options& o) {
  // A Runtime that only reads: it marks, evolves and writes nothing, and serves nobody.
  RuntimeConfig config = torch_config();
  if (const Status s = apply_environment(environ, &config); !s.ok()) return fail(s);
  if (!o.cache.empty()) config.cache_dir = o.cache;
  if (config.cache_dir.empty())
    return fail(dispatch::invalid("which cache? give --cache, NICHE_CACHE_DIR or a config with cache_dir"));
  if (std::error_code ignored; !std::filesystem::is_directory(config.cache_dir, ignored))
    return fail(dispatch::not_found("cache " + config.cache_dir + ": no such directory"));
  DefinitionFlags flags = o.definition;
  flags.op_libraries.insert(flags.op_libraries.begin(), config.op_libraries.begin(),
                            config.op_libraries.end());
  auto bench = Workbench::make(flags, false);
  if (!bench.ok()) return fail(bench.status());
  auto definition = (*bench)->definition(flags);
  if (!definition.ok()) return fail(definition.status());
  auto axes = parse_axes(o.axes);
  if (!axes.ok()) return fail(axes.status());
  config.op_libraries = (*bench)->op_libraries;
  config.cache_read_only = true;
  config.state_dir.clear();
  config.evolve = false;
  config.log = std::make_shared<EntriesOnly>();
  config.http_address.clear();
  auto runtime = Runtime::create(std::move(config));
  if (!runtime.ok()) return fail(runtime.status());
  Axes const_axes;
  Attrs attrs;
  const auto& schema = (*definition)->schema();
  for (size_t i = 0; i < schema.axes.size(); ++i)
    if (schema.axes[i].kind == dispatch::AxisKind::kConst)
      const_axes.emplace_back(schema.axes[i].name, (*definition)->const_extents()[i]);
  for (size_t i = 0; i < schema.attrs.size(); ++i)
    attrs.emplace_back(schema.attrs[i].name, (*definition)->attrs()[i]);
  auto handle = (*runtime)->op(schema.op, (*definition)->dtype(), const_axes, attrs);
  if (!handle.ok()) return fail(handle.status());
  auto explanation = (*runtime)->explain(*handle, *axes);
  if (!explanation.ok()) return fail(explanation.status());
  std::printf("%s\n", (o.json ? explanation->to_json() : explanation->to_text()).c_str());
  return 0;
}

}  // namespace

void add_explain_command(CLI::App& app, int* exit_code) {
  CLI::App* c = app.add_subcommand("explain", "which kernel of a cache would serve a problem, and why");
  auto o = std::make_shared<Options>();
  o->definition.add_to(*c);
  c->add_option("--cache", o->cache, "cache directory; default: that of NICHE_CACHE_DIR or NICHE_CONFIG");
  c->add_option("axes", o->axes, "variable axes, e.g. M=17")->required();
  c->add_flag("--json", o->json, "as JSON");
  c->callback([o, exit_code] { *exit_code = run(*o); });
}

void add_config_command(CLI::App& app, int* exit_code) {
  CLI::App* c =
      app.add_subcommand("config", "the keys of a config file (and NICHE_<KEY> variables), or check one");
  auto file = std::make_shared<std::string>();
  c->add_option("file", *file, "a config to check")->check(CLI::ExistingFile);
  c->callback([file, exit_code] {
    if (!file->empty()) {
      RuntimeConfig config;
      Status s = apply_file(*file, &config);
      if (s.ok())
        if (s = config.validate(); !s.ok()) s = Status(s.code(), *file + ": " + s.message());
      *exit_code = s.ok() ? 0 : fail(s);
      if (s.ok()) std::printf("%s: ok\n", file->c_str());
      return;
    }
    for (const ConfigField& f : config_fields()) {
      std::string kind(f.type);
      char range[64] = "";
      const auto digits = [](double v) { return v == std::floor(v) ? 0 : 3; };
      if (f.lo < f.hi)
        std::snprintf(range, sizeof range, " %.*f..%.*f", digits(f.lo), f.lo, digits(f.hi), f.hi);
      kind += range;
      if (!f.unit.empty()) kind += ' ' + std::string(f.unit);
      std::printf("%s\n    %s\n    %s; default: %s; %s\n", std::string(f.name).c_str(),
                  std::string(f.meaning).c_str(), kind.c_str(),
                  f.default_value.empty() ? "(empty)" : f.default_value.c_str(), f.environment.c_str());
    }
  });
}

}  // namespace niche::cli
