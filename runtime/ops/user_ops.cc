#include "runtime/ops/user_ops.h"

#include <dlfcn.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "evolve/definition_json.h"
#include "runtime/ops/user_op.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;

constexpr size_t kDocumentBytesMax = size_t{1} << 20;

Status at_path(const std::string& path, const Status& s) {
  return s.ok() ? s : Status(s.code(), path + ": " + s.message());
}

Result<std::string> read_document(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_status("open " + path);
  std::string text(kDocumentBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return errno_status("read " + path);
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kDocumentBytesMax) return invalid(path + ": more than 1 MiB, too large for a Definition");
  return text;
}

Status load_object(const std::string& path, OpRegistry& registry) {
  if (std::ifstream probe(path); !probe) return errno_status("open " + path);
  // A bare name would be searched for in the system's library path.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* object = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!object) return unsupported(path + ": cannot be loaded: " + dlerror());
  const auto abi = reinterpret_cast<NicheOpAbiFn>(dlsym(object, "niche_op_abi"));
  const auto add = reinterpret_cast<NicheRegisterOpsFn>(dlsym(object, "niche_register_ops"));
  if (!abi || !add) {
    dlclose(object);
    return unsupported(path + ": exports no " + (abi ? "niche_register_ops" : "niche_op_abi") +
                       "; is NICHE_REGISTER_OPS missing?");
  }
  const char* theirs = nullptr;
  try {
    theirs = abi();
  } catch (...) {  // as one that names nothing
  }
  if (theirs == nullptr || theirs != op_abi()) {
    const std::string found = theirs == nullptr ? "nothing" : theirs;  // its text goes with the object
    dlclose(object);
    return unsupported(path + ": built for '" + found + "', this niche is '" + op_abi() +
                       "': build it again");
  }
  // Into a registry of its own first, so that a failure half-way adds nothing. From here on the object stays
  // loaded.
  OpRegistry own;
  Status status;
  try {
    add(&own, &status);
  } catch (const std::exception& e) {
    status = invalid(std::string("threw while it registered: ") + e.what());
  } catch (...) {
    status = invalid("threw while it registered");
  }
  if (!status.ok()) return at_path(path, status);
  if (own.all().empty()) return invalid(path + ": registers no operator");
  for (const auto& op : own.all())
    if (registry.find(op->schema()->op))
      return busy(path + ": operator '" + op->schema()->op + "' is registered already");
  for (const auto& op : own.all()) NICHE_RETURN_IF_ERROR(registry.add(op));
  return {};
}

}  // namespace

Status load_user_ops(const std::string& path, OpRegistry& registry, const PythonHost& python) {
  if (path.ends_with(".so")) return load_object(path, registry);
  if (!path.ends_with(".json"))
    return invalid(path + ": neither a shared object (.so) nor a Definition (.json)");
  auto text = read_document(path);
  if (!text.ok()) return text.status();
  auto made = make_torchscript_op(*text, python);
  if (!made.ok()) return at_path(path, made.status());
  return at_path(path, registry.add(made->op));
}

Result<std::shared_ptr<const Definition>> load_definition(const std::string& path,
                                                          const OpRegistry& registry) {
  auto text = read_document(path);
  if (!text.ok()) return text.status();
  auto definition = evolve::definition_from_json(*text, registry);
  if (!definition.ok()) return at_path(path, definition.status());
  return definition;
}

}  // namespace niche::ops
