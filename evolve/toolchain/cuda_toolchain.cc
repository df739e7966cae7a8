#include "evolve/toolchain/cuda_toolchain.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "evolve/toolchain/cubin_cache.h"
#include "kernels_cache/sha256.h"

namespace niche::evolve {

using dispatch::Result;
using dispatch::Status;

// nvrtc.h's declarations, as far as they are used: the header is not on every machine that has the library.
struct CudaToolchain::Api {
  using Program = void*;
  int (*version)(int*, int*);
  const char* (*error_text)(int);
  int (*arch_count)(int*);
  int (*archs)(int*);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int, const char* const*);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
};

namespace {

// --use_fast_math is not among them: a kernel asks for approximate instructions by name, where its error
// bound allows them.
constexpr std::array kFlags = {"--std=c++17", "-no-source-include", "--ptxas-options=-v",
                               "--extra-device-vectorization"};
constexpr size_t kDiagnosticBytes = 4096;
constexpr int kNvrtcCompilation = 6;  // NVRTC_ERROR_COMPILATION

// `what` at the start of a directive: "#include", "# include", "??=include" is no longer C++17.
bool has_directive(std::string_view text, std::string_view what) {
  for (size_t at = text.find('#'); at != std::string_view::npos; at = text.find('#', at + 1)) {
    size_t from = at + 1;
    while (from < text.size() && (text[from] == ' ' || text[from] == '\t' || text[from] == '\\' ||
                                  text[from] == '\n' || text[from] == '\r'))
      ++from;
    if (text.substr(from).starts_with(what)) return true;
  }
  return false;
}

Status check_text(std::string_view name, std::string_view text, int64_t bytes_max) {
  const std::string who(name);
  if (static_cast<int64_t>(text.size()) > bytes_max)
    return dispatch::invalid(who + ": source of " + std::to_string(text.size()) + " bytes, more than " +
                             std::to_string(bytes_max) + " allowed");
  if (text.find('\0') != std::string_view::npos)
    return dispatch::invalid(who + ": a null byte in the source");
  for (const char* directive : {"include", "embed", "import"})
    if (has_directive(text, directive))
      return dispatch::invalid(who + ": #" + directive + " is refused: a kernel includes nothing");
  // Comments inside a directive would hide its name from the check above.
  if (has_directive(text, "/*")) return dispatch::invalid(who + ": a comment inside a directive is refused");
  for (const char* word : {"__has_include", ".include", ".file"})
    if (text.find(word) != std::string_view::npos)
      return dispatch::invalid(who + ": '" + word + "' is refused: a kernel reads no files");
  if (text.find("__global__") == std::string_view::npos)
    return dispatch::invalid(who + ": no __global__ entry");
  return {};
}

std::string first_error(const std::string& log) {
  const size_t at = log.find("error");
  const size_t newline = at == std::string::npos ? std::string::npos : log.rfind('\n', at);
  return log.substr(newline == std::string::npos ? 0 : newline + 1, kDiagnosticBytes);
}

// " (calls, table)", the first few.
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 4; ++i) text += (i == 0 ? " (" : ", ") + names[i].substr(0, 80);
  return text.empty() ? text : text + (names.size() > 4 ? ", ...)" : ")");
}

void* open_library(const std::vector<std::string>& names, std::string* opened, std::string* reasons) {
  for (const std::string& name : names) {
    dlerror();
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      *opened = name;
      return handle;
    }
    const char* why = dlerror();
    *reasons += (reasons->empty() ? "" : "; ") + (why != nullptr ? std::string(why) : name);
  }
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<CudaToolchain>> CudaToolchain::find(const Options& options) {
  auto t = std::unique_ptr<CudaToolchain>(new CudaToolchain());
  t->options_ = options;
  std::vector<std::string> names = {options.library};
  if (options.library.empty()) names = {"libnvrtc.so.13", "libnvrtc.so.12", NICHE_NVRTC_LIBRARY};
  std::string reasons;
  void* handle = open_library(names, &t->library_, &reasons);
  if (handle == nullptr) return dispatch::unsupported("no NVRTC here: " + reasons);
  auto api = std::make_shared<Api>();
  bool whole = true;
  const auto resolve = [&](auto* field, const char* symbol) {
    *field = reinterpret_cast<std::remove_pointer_t<decltype(field)>>(dlsym(handle, symbol));
    whole = whole && *field != nullptr;
  };
  resolve(&api->version, "nvrtcVersion");
  resolve(&api->error_text, "nvrtcGetErrorString");
  resolve(&api->arch_count, "nvrtcGetNumSupportedArchs");
  resolve(&api->archs, "nvrtcGetSupportedArchs");
  resolve(&api->create, "nvrtcCreateProgram");
  resolve(&api->destroy, "nvrtcDestroyProgram");
  resolve(&api->compile, "nvrtcCompileProgram");
  resolve(&api->log_size, "nvrtcGetProgramLogSize");
  resolve(&api->log, "nvrtcGetProgramLog");
  resolve(&api->cubin_size, "nvrtcGetCUBINSize");
  resolve(&api->cubin, "nvrtcGetCUBIN");
  if (!whole) return dispatch::unsupported(t->library_ + " is not an NVRTC of CUDA 12 or later");
  t->api_ = std::move(api);
  int major = 0, minor = 0, count = 0;
  t->api_->version(&major, &minor);
  t->api_->arch_count(&count);
  t->archs_.resize(static_cast<size_t>(std::max(count, 0)));
  t->api_->archs(t->archs_.data());
  t->version_ = "NVRTC " + std::to_string(major) + "." + std::to_string(minor);
  for (const char* f : kFlags) t->version_ += std::string(" ") + f;
  return t;
}

bool CudaToolchain::supports(std::string_view arch) const {
  if (!arch.starts_with("sm_")) return false;
  arch.remove_prefix(3);
  if (arch.ends_with('a')) arch.remove_suffix(1);
  return std::any_of(archs_.begin(), archs_.end(), [&](int a) { return std::to_string(a) == arch; });
}

Result<CompiledCubin> CudaToolchain::run(std::string_view name, const std::string& text,
                                         const std::string& arch) const {
  const std::string who(name);
  Api::Program program = nullptr;
  if (const int r = api_->create(&program, text.c_str(), (who + ".cu").c_str(), 0, nullptr, nullptr); r != 0)
    return dispatch::internal(who + ": nvrtcCreateProgram: " + api_->error_text(r));
  struct Destroy {
    const Api& api;
    Api::Program* program;
    ~Destroy() { api.destroy(program); }
  } const destroy{*api_, &program};
  const std::string arch_flag = "--gpu-architecture=" + arch;
  std::vector<const char*> flags(kFlags.begin(), kFlags.end());
  flags.push_back(arch_flag.c_str());

  CompiledCubin c;
  const auto start = std::chrono::steady_clock::now();
  const int compiled = api_->compile(program, static_cast<int>(flags.size()), flags.data());
  c.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  size_t bytes = 0;
  if (api_->log_size(program, &bytes) == 0 && bytes > 1) {
    c.log.resize(bytes);
    api_->log(program, c.log.data());
    c.log.resize(bytes - 1);  // its terminating null
  }
  if (compiled == kNvrtcCompilation)
    return dispatch::invalid(who + " for " + arch + ": " + first_error(c.log));
  if (compiled != 0)
    return dispatch::internal(who + " for " + arch + ": nvrtcCompileProgram: " + api_->error_text(compiled) +
                              ": " + first_error(c.log));
  if (const int r = api_->cubin_size(program, &bytes); r != 0 || bytes == 0)
    return dispatch::internal(who + " for " + arch + ": no cubin: " + api_->error_text(r));
  c.bytes.resize(bytes);
  if (const int r = api_->cubin(program, reinterpret_cast<char*>(c.bytes.data())); r != 0)
    return dispatch::internal(who + " for " + arch + ": nvrtcGetCUBIN: " + api_->error_text(r));
  return c;
}

Result<CompiledCubin> CudaToolchain::compile(std::string_view name, const std::string& text,
                                             const std::string& arch) const {
  NICHE_RETURN_IF_ERROR(check_text(name, text, options_.source_bytes));
  if (!supports(arch))
    return dispatch::invalid(std::string(name) + ": " + version_.substr(0, version_.find(" --")) +
                             " does not compile for '" + arch.substr(0, 40) + "'");
  const CubinCache cache(options_.cache_dir);
  const std::string key = kernels_cache::to_hex(kernels_cache::sha256(version_ + "\n" + arch + "\n" + text));
  CompiledCubin c;
  c.cached = cache.load(key, &c.bytes, &c.log);
  if (c.cached) {
    auto info = read_cubin(c.bytes, c.log);
    c.cached = info.ok();
    if (info.ok()) c.info = std::move(*info);
  }
  if (!c.cached) {
    auto built = run(name, text, arch);
    if (!built) return built.status();
    c = std::move(*built);
    auto info = read_cubin(c.bytes, c.log);
    if (!info) return info.status();
    c.info = std::move(*info);
    cache.store(key, c.bytes, c.log);
  }
  if (c.info.writable_global_bytes > 0)
    return dispatch::invalid(
        std::string(name) + ": " + std::to_string(c.info.writable_global_bytes) +
        " bytes of writable module variables" + listed(c.info.writable_globals) +
        ": state would outlive a call; constants as enumerators, macros or __constant__");
  return c;
}

}  // namespace niche::evolve
