#include "evolve/toolchain/cubin_info.h"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace niche::evolve {
namespace {

using dispatch::corrupt;
using dispatch::Result;
using dispatch::Status;

constexpr uint16_t kMachineCuda = 190;  // EM_CUDA
// Records of .nv.info: format 4 (a payload of `size` bytes) and the attribute; payload {symbol, value}.
constexpr uint8_t kFormatPayload = 4, kFrameSize = 0x11, kRegisterCount = 0x2f;

template <typename T>
bool read_at(std::span<const uint8_t> b, uint64_t at, T* out) {
  if (at > b.size() || sizeof(T) > b.size() - at) return false;
  std::memcpy(out, b.data() + at, sizeof(T));
  return true;
}

class Elf {
 public:
  static Result<Elf> open(std::span<const uint8_t> b) {
    Elf e;
    e.bytes_ = b;
    Elf64_Ehdr h;
    if (!read_at(b, 0, &h) || std::memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 ||
        h.e_ident[EI_CLASS] != ELFCLASS64)
      return corrupt("cubin: no 64-bit ELF header in " + std::to_string(b.size()) + " bytes");
    if (h.e_machine != kMachineCuda)
      return corrupt("cubin: ELF for machine " + std::to_string(h.e_machine) + ", CUDA is 190");
    for (unsigned i = 0; i < h.e_shnum; ++i) {
      Elf64_Shdr s;
      if (h.e_shentsize < sizeof s || !read_at(b, h.e_shoff + uint64_t{i} * h.e_shentsize, &s))
        return corrupt("cubin: section header " + std::to_string(i) + " lies outside the file");
      if (s.sh_type != SHT_NOBITS && (s.sh_offset > b.size() || s.sh_size > b.size() - s.sh_offset))
        return corrupt("cubin: section " + std::to_string(i) + " lies outside the file");
      e.sections_.push_back(s);
    }
    if (h.e_phoff > b.size() || uint64_t{h.e_phentsize} * h.e_phnum > b.size() - h.e_phoff)
      return corrupt("cubin: program headers lie outside the file");
    if (h.e_shstrndx >= e.sections_.size()) return corrupt("cubin: no section names");
    e.names_ = h.e_shstrndx;
    return e;
  }

  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  std::string_view name(const Elf64_Shdr& s) const { return text(sections_[names_], s.sh_name); }
  std::span<const uint8_t> content(const Elf64_Shdr& s) const {
    if (s.sh_type == SHT_NOBITS) return {};
    return bytes_.subspan(s.sh_offset, s.sh_size);
  }
  // A string of a string table; empty where there is none.
  std::string_view text(const Elf64_Shdr& table, uint64_t at) const {
    const auto c = content(table);
    if (at >= c.size()) return {};
    const auto* from = reinterpret_cast<const char*>(c.data()) + at;
    return {from, strnlen(from, c.size() - at)};
  }
  // Names of the data that section `index` holds.
  std::vector<std::string> objects_of(size_t index) const {
    std::vector<std::string> names;
    for (const Elf64_Shdr& s : sections_) {
      if (s.sh_type != SHT_SYMTAB || s.sh_link >= sections_.size()) continue;
      Elf64_Sym sym;
      for (uint64_t at = 0; read_at(content(s), at, &sym); at += sizeof sym)
        if (sym.st_shndx == index && ELF64_ST_TYPE(sym.st_info) == STT_OBJECT)
          names.emplace_back(text(sections_[s.sh_link], sym.st_name));
    }
    return names;
  }
  // Name of symbol `index` of the first symbol table.
  std::string_view symbol(uint32_t index) const {
    for (const Elf64_Shdr& s : sections_) {
      if (s.sh_type != SHT_SYMTAB || s.sh_link >= sections_.size()) continue;
      Elf64_Sym sym;
      if (!read_at(content(s), uint64_t{index} * sizeof sym, &sym)) return {};
      return text(sections_[s.sh_link], sym.st_name);
    }
    return {};
  }

 private:
  std::span<const uint8_t> bytes_;
  std::vector<Elf64_Shdr> sections_;
  size_t names_ = 0;
};

void read_nv_info(const Elf& elf, std::span<const uint8_t> info, std::vector<CubinKernel>* kernels) {
  for (uint64_t at = 0; at + 4 <= info.size();) {
    const uint8_t format = info[at], attribute = info[at + 1];
    uint16_t size = 0;
    read_at(info, at + 2, &size);
    at += 4;
    if (format != kFormatPayload) continue;  // the value is in the two bytes of size
    uint32_t index = 0, value = 0;
    if (size >= 8 && read_at(info, at, &index) && read_at(info, at + 4, &value))
      for (CubinKernel& k : *kernels)
        if (k.symbol == elf.symbol(index)) {
          if (attribute == kRegisterCount) k.registers = static_cast<int>(value);
          if (attribute == kFrameSize) k.stack_bytes = static_cast<int>(value);
        }
    at += size;
  }
}

// The number that stands before `what` in `line`; -1: not there.
int number_before(std::string_view line, std::string_view what) {
  size_t at = line.find(what);
  if (at == std::string_view::npos) return -1;
  size_t end = at;
  while (end > 0 && line[end - 1] == ' ') --end;
  size_t from = end;
  while (from > 0 && line[from - 1] >= '0' && line[from - 1] <= '9') --from;
  int v = -1;
  std::from_chars(line.data() + from, line.data() + end, v);
  return v;
}

void read_log(std::string_view log, std::vector<CubinKernel>* kernels) {
  CubinKernel* k = nullptr;
  while (!log.empty()) {
    const std::string_view line = log.substr(0, log.find('\n'));
    log.remove_prefix(std::min(log.size(), line.size() + 1));
    if (const size_t at = line.find("Compiling entry function '"); at != std::string_view::npos) {
      const size_t from = at + 26, to = line.find('\'', from);
      k = nullptr;
      for (CubinKernel& c : *kernels)
        if (to != std::string_view::npos && c.symbol == line.substr(from, to - from)) k = &c;
    }
    if (k == nullptr) continue;
    if (line.find("spill stores") != std::string_view::npos) {
      k->spill_store_bytes = number_before(line, "bytes spill stores");
      k->spill_load_bytes = number_before(line, "bytes spill loads");
    }
    if (line.find("Used ") != std::string_view::npos)
      k->static_shared_bytes = std::max(0, number_before(line, "bytes smem"));
  }
}

}  // namespace

std::string CubinKernel::to_string() const {
  const auto known = [](int v) { return v < 0 ? std::string("?") : std::to_string(v); };
  return "registers " + std::to_string(registers) + ", stack " + std::to_string(stack_bytes) + ", spills " +
         known(spill_store_bytes) + "/" + known(spill_load_bytes) + ", shared " + known(static_shared_bytes);
}

const CubinKernel* CubinInfo::find(std::string_view symbol) const {
  for (const CubinKernel& k : kernels)
    if (k.symbol == symbol) return &k;
  return nullptr;
}

Result<CubinInfo> read_cubin(std::span<const uint8_t> cubin, std::string_view log) {
  Result<Elf> elf = Elf::open(cubin);
  if (!elf) return elf.status();
  CubinInfo info;
  for (const Elf64_Shdr& s : elf->sections()) {
    const std::string_view name = elf->name(s);
    if (name.starts_with(".text.")) info.kernels.push_back({.symbol = std::string(name.substr(6))});
    if (name == ".nv.global" || name == ".nv.global.init") {
      info.writable_global_bytes += static_cast<int64_t>(s.sh_size);
      const auto index = static_cast<size_t>(&s - elf->sections().data());
      for (std::string& object : elf->objects_of(index)) info.writable_globals.push_back(std::move(object));
    }
  }
  for (const Elf64_Shdr& s : elf->sections())
    if (elf->name(s) == ".nv.info") read_nv_info(*elf, elf->content(s), &info.kernels);
  std::sort(info.kernels.begin(), info.kernels.end(),
            [](const CubinKernel& a, const CubinKernel& b) { return a.symbol < b.symbol; });
  read_log(log, &info.kernels);
  return info;
}

}  // namespace niche::evolve
