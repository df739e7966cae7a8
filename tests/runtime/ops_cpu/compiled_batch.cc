#include "tests/runtime/ops_cpu/compiled_batch.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

namespace niche::ops_cpu_test {
namespace {

constexpr uint8_t kFence = 0xA7;
size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

std::string read_all(std::FILE* f) {
  std::string text;
  std::array<char, 4096> buf{};
  while (size_t n = std::fread(buf.data(), 1, buf.size(), f)) text.append(buf.data(), n);
  return text;
}

}  // namespace

GuardedBuffer::GuardedBuffer(size_t bytes, size_t shift, bool at_end) : bytes_(bytes) {
  const size_t inner = round_up(bytes + shift + 1, page());
  map_bytes_ = inner + 2 * page();
  void* m = mmap(nullptr, map_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED || mprotect(static_cast<uint8_t*>(m) + page(), inner, PROT_READ | PROT_WRITE) != 0)
    std::abort();
  map_ = static_cast<uint8_t*>(m);
  std::memset(map_ + page(), kFence, inner);
  data_ = at_end ? map_ + page() + inner - shift - bytes : map_ + page() + shift;
}
GuardedBuffer::GuardedBuffer(GuardedBuffer&& o) noexcept
    : map_(std::exchange(o.map_, nullptr)), map_bytes_(o.map_bytes_), bytes_(o.bytes_), data_(o.data_) {}
GuardedBuffer::~GuardedBuffer() {
  if (map_ != nullptr) munmap(map_, map_bytes_);
}
bool GuardedBuffer::fence_intact() const {
  for (const uint8_t* p = map_ + page(); p < data_; ++p)
    if (*p != kFence) return false;
  for (const uint8_t* p = data_ + bytes_; p < map_ + map_bytes_ - page(); ++p)
    if (*p != kFence) return false;
  return true;
}

CompiledBatch::~CompiledBatch() {
  if (handle_ != nullptr) dlclose(handle_);
}

int CompiledBatch::add(evolve::KernelSource source) {
  sources_.push_back(std::move(source));
  return static_cast<int>(sources_.size()) - 1;
}

std::string CompiledBatch::build(const std::string& march, bool load) {
  char dir[] = "/tmp/niche_ops_cpu_XXXXXX";
  if (mkdtemp(dir) == nullptr) return "mkdtemp failed";
  const std::string base(dir), source = base + "/k.cc", object = base + "/k.so";
  {
    std::ofstream out(source);
    out << evolve::cpu_preamble();
    for (size_t i = 0; i < sources_.size(); ++i) {
      std::string_view text = sources_[i].text;
      if (!text.starts_with(evolve::cpu_preamble()))
        return sources_[i].kernel_name + ": does not start with cpu_preamble()";
      text.remove_prefix(evolve::cpu_preamble().size());
      out << "namespace niche_k" << i << " {\n#line 1 \"" << sources_[i].kernel_name << "\"\n"
          << text << "\n}\n";
    }
  }
  // The toolchain's flags (evolve/toolchain/cpp_toolchain.cc), with the warnings it silences.
  const std::string command =
      std::string(NICHE_TEST_COMPILER) + " -std=c++20 -O3 -march=" + march +
      " -fPIC -shared -nostdlib -nostdinc -nostdinc++ -fno-exceptions -fno-rtti"
      " -fno-asynchronous-unwind-tables -fno-stack-protector -ffp-contract=fast -fno-math-errno"
      " -Wall -Wextra -Wno-psabi -Wno-unused-function -Werror -o " +
      object + " " + source + " 2>&1";
  std::FILE* p = popen(command.c_str(), "r");
  if (p == nullptr) return "popen failed";
  std::string text = read_all(p);
  const int rc = pclose(p);
  if (rc == 0 && load) {
    handle_ = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) text = dlerror();
  }
  const bool good = rc == 0 && (!load || handle_ != nullptr);
  if (good || std::getenv("NICHE_KEEP_SOURCES") == nullptr) {
    std::remove(source.c_str());
    std::remove(object.c_str());
    rmdir(dir);
  } else {
    text = "kept " + source + "\n" + text;
  }
  return good ? "" : (text.empty() ? "compiler failed" : text.substr(0, 4000));
}

void* CompiledBatch::symbol(const std::string& name) const {
  void* s = dlsym(handle_, name.c_str());
  if (s == nullptr) std::fprintf(stderr, "no symbol %s\n", name.c_str()), std::abort();
  return s;
}

bool CompiledBatch::run(int i, void* const* p, const long* axes, const double* attrs,
                        const std::vector<bool>& constant, int64_t pieces) const {
  const evolve::KernelSource& s = source(i);
  const auto aligned_buffer = [](int64_t bytes) {
    GuardedBuffer b(round_up(static_cast<size_t>(bytes), 64), 0, true);
    std::memset(b.data(), 0x5C, b.size());
    return b;
  };
  NicheKernelArgs args{p, axes, attrs, nullptr, nullptr};
  const GuardedBuffer packed = aligned_buffer(s.plan.packed_bytes);
  const GuardedBuffer ws = aligned_buffer(s.plan.workspace_bytes);
  if (!s.plan.pack_symbol.empty()) {
    std::vector<void*> constants;
    for (size_t k = 0; k < constant.size(); ++k) constants.push_back(constant[k] ? p[k] : nullptr);
    const NicheKernelArgs pack_args{constants.data(), axes, attrs, nullptr, nullptr};
    reinterpret_cast<NichePackFn>(symbol(s.plan.pack_symbol))(&pack_args, packed.data());
    args.packed = packed.data();
  }
  if (s.plan.workspace_bytes > 0) args.ws = ws.data();
  for (const dispatch::Phase& phase : s.plan.phases) {
    const auto fn = reinterpret_cast<NicheKernelFn>(symbol(phase.symbol));
    std::vector<int64_t> extents(axes, axes + dispatch::kMaxAxes);
    const int64_t tasks = phase.tasks(extents.data());
    const int64_t n = pieces == 0 ? tasks : std::min(pieces, tasks);
    for (int64_t k = n - 1; k >= 0; --k) fn(&args, tasks * k / n, tasks * (k + 1) / n);
  }
  return ws.fence_intact() && packed.fence_intact();
}

}  // namespace niche::ops_cpu_test
