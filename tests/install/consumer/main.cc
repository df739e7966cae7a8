// A project of somebody else: uses an installed niche through its public header alone.
#include <niche/runtime/runtime.h>

#include <cstdio>

int main() {
  niche::RuntimeConfig config;
  config.disable = true;
  auto runtime = niche::Runtime::create(std::move(config));
  if (!runtime.ok()) {
    std::fprintf(stderr, "%s\n", runtime.status().to_string().c_str());
    return 1;
  }
  // No operator is registered in a config that names none: the error must say so, not crash.
  const auto handle = (*runtime)->op("rms_norm", niche::kF32, {{"N", 64}});
  std::printf("%s\n", handle.status().to_string().c_str());
  return handle.status().code() == niche::Code::kNotFound ? 0 : 1;
}
