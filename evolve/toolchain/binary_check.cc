#include "evolve/toolchain/binary_check.h"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "dispatch/base/hash.h"
#include "evolve/toolchain/x86_scan.h"

namespace niche::evolve {
namespace {

using dispatch::Status;

constexpr std::array kAllowedSymbols = {
    "memcpy", "memset", "memmove", "memcmp", "expf",   "exp",        "exp2f",     "exp2",   "expm1f",
    "expm1",  "logf",   "log",     "log2f",  "log2",   "log1pf",     "log1p",     "sinf",   "sin",
    "cosf",   "cos",    "tanf",    "tan",    "tanhf",  "tanh",       "sinhf",     "sinh",   "coshf",
    "cosh",   "erff",   "erf",     "erfcf",  "erfc",   "powf",       "pow",       "sqrtf",  "sqrt",
    "cbrtf",  "cbrt",   "fmaf",    "fma",    "floorf", "floor",      "ceilf",     "ceil",   "roundf",
    "round",  "rintf",  "rint",    "truncf", "trunc",  "nearbyintf", "nearbyint", "fmodf",  "fmod",
    "fabsf",  "fabs",   "fmaxf",   "fmax",   "fminf",  "fmin",       "atanf",     "atan",   "atan2f",
    "atan2",  "asinf",  "asin",    "acosf",  "acos",   "hypotf",     "hypot",     "ldexpf", "ldexp"};

class Object {
 public:
  Object(std::span<const uint8_t> bytes, DefencesOff off)
      : bytes_(bytes),
        any_data_(off.has(Defence::kData)),
        any_symbol_(off.has(Defence::kSymbols)),
        any_instruction_(off.has(Defence::kInstructions)) {}

  dispatch::Result<BinaryFacts> check(std::span<const std::string> required) {
    NICHE_RETURN_IF_ERROR(read_headers());
    NICHE_RETURN_IF_ERROR(check_segments());
    NICHE_RETURN_IF_ERROR(check_sections());
    NICHE_RETURN_IF_ERROR(check_dynamic());
    NICHE_RETURN_IF_ERROR(check_symbols());
    for (const std::string& name : required)
      if (std::find(facts_.exports.begin(), facts_.exports.end(), name) == facts_.exports.end())
        return dispatch::invalid("no function '" + name + "' in the object");
    return facts_;
  }

 private:
  template <typename T>
  bool get(uint64_t offset, T& out) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) return false;
    std::memcpy(&out, bytes_.data() + offset, sizeof(T));
    return true;
  }
  bool inside(uint64_t offset, uint64_t size) const {
    return offset <= bytes_.size() && size <= bytes_.size() - offset;
  }
  std::string_view string_at(const Elf64_Shdr& table, uint64_t index) const {
    if (!inside(table.sh_offset, table.sh_size) || index >= table.sh_size) return "?";
    const char* start = reinterpret_cast<const char*>(bytes_.data()) + table.sh_offset + index;
    return {start, strnlen(start, table.sh_size - index)};
  }
  std::string name_of(const Elf64_Shdr& s) const {
    return std::string(string_at(sections_[header_.e_shstrndx], s.sh_name));
  }

  Status read_headers() {
    if (!get(0, header_) || std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0 ||
        header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_type != ET_DYN ||
        header_.e_machine != EM_X86_64 || header_.e_phentsize != sizeof(Elf64_Phdr) ||
        header_.e_shentsize != sizeof(Elf64_Shdr))
      return dispatch::corrupt("object: not an x86-64 ELF shared object");
    for (int i = 0; i < header_.e_shnum; ++i) {
      Elf64_Shdr s;
      if (!get(header_.e_shoff + static_cast<uint64_t>(i) * sizeof s, s))
        return dispatch::corrupt("object: section header " + std::to_string(i) + " lies past the end");
      if (s.sh_type != SHT_NOBITS && !inside(s.sh_offset, s.sh_size))
        return dispatch::corrupt("object: section " + std::to_string(i) + " lies past the end");
      sections_.push_back(s);
    }
    if (header_.e_shstrndx >= sections_.size()) return dispatch::corrupt("object: no section names");
    return {};
  }

  Status check_segments() {
    for (int i = 0; i < header_.e_phnum; ++i) {
      Elf64_Phdr p;
      if (!get(header_.e_phoff + static_cast<uint64_t>(i) * sizeof p, p))
        return dispatch::corrupt("object: program header " + std::to_string(i) + " lies past the end");
      if (p.p_type == PT_TLS && !any_data_) return dispatch::invalid("thread-local storage");
      if (p.p_type == PT_INTERP) return dispatch::invalid("a program interpreter");
      if (p.p_type == PT_GNU_STACK && (p.p_flags & PF_X) != 0)
        return dispatch::invalid("an executable stack");
      if (p.p_type != PT_LOAD) continue;
      if ((p.p_flags & PF_W) != 0 && (p.p_flags & PF_X) != 0)
        return dispatch::invalid("a segment both writable and executable");
      if (!inside(p.p_offset, p.p_filesz)) return dispatch::corrupt("object: a segment lies past the end");
      // Swept as mapped, not by sections: what is executable is what the loader maps so.
      if ((p.p_flags & PF_X) != 0) NICHE_RETURN_IF_ERROR(check_code(p));
    }
    if (facts_.code_bytes == 0) return dispatch::invalid("no code");
    return {};
  }

  // Inside an executable segment the linker pads between sections: each section is swept from its own start,
  // and what lies between them must be zero.
  Status check_code(const Elf64_Phdr& p) {
    std::vector<const Elf64_Shdr*> code;
    for (const Elf64_Shdr& s : sections_)
      if ((s.sh_flags & SHF_EXECINSTR) != 0 && s.sh_type == SHT_PROGBITS && s.sh_size > 0) code.push_back(&s);
    std::sort(code.begin(), code.end(), [](auto* a, auto* b) { return a->sh_offset < b->sh_offset; });
    uint64_t at = p.p_offset;
    const uint64_t end = p.p_offset + p.p_filesz;
    for (const Elf64_Shdr* s : code) {
      if (s->sh_offset < at || s->sh_offset + s->sh_size > end) continue;
      NICHE_RETURN_IF_ERROR(check_gap(at, s->sh_offset));
      const auto body = bytes_.subspan(s->sh_offset, s->sh_size);
      const ForbiddenInstruction found = find_forbidden_instruction(body);
      if (found.name != nullptr && !any_instruction_)
        return dispatch::invalid(std::string("instruction ") + found.name + " at " + name_of(*s) + "+" +
                                 std::to_string(found.offset));
      facts_.code_bytes += static_cast<int64_t>(body.size());
      at = s->sh_offset + s->sh_size;
    }
    return check_gap(at, end);
  }

  Status check_gap(uint64_t from, uint64_t to) const {
    for (uint64_t i = from; i < to; ++i)
      if (bytes_[i] != 0)
        return dispatch::invalid("executable bytes outside of any section, at " + std::to_string(i));
    return {};
  }

  Status check_sections() {
    for (const Elf64_Shdr& s : sections_) {
      if (any_data_ && s.sh_type != SHT_PROGBITS) continue;
      if (s.sh_type == SHT_INIT_ARRAY || s.sh_type == SHT_FINI_ARRAY || s.sh_type == SHT_PREINIT_ARRAY)
        return dispatch::invalid("a constructor or destructor (section " + name_of(s) + ")");
      if (s.sh_type == SHT_PROGBITS && (s.sh_flags & SHF_ALLOC) != 0 && (s.sh_flags & SHF_WRITE) == 0)
        facts_.code_hash = dispatch::hash_bytes(
            {reinterpret_cast<const char*>(bytes_.data()) + s.sh_offset, s.sh_size}, facts_.code_hash);
      if ((s.sh_flags & SHF_WRITE) == 0 || (s.sh_flags & SHF_ALLOC) == 0 || s.sh_size == 0) continue;
      if (any_data_) continue;
      // Read-only after relocation.
      const std::string name = name_of(s);
      if (name == ".dynamic" || name == ".got" || name == ".got.plt" || name == ".data.rel.ro") continue;
      return dispatch::invalid("writable global data (section " + name + ", " + std::to_string(s.sh_size) +
                               " bytes)");
    }
    return {};
  }

  Status check_dynamic() {
    for (const Elf64_Shdr& s : sections_) {
      if (s.sh_type == SHT_RELA) NICHE_RETURN_IF_ERROR(check_relocations(s));
      if (s.sh_type != SHT_DYNAMIC) continue;
      for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= s.sh_size; at += sizeof(Elf64_Dyn)) {
        Elf64_Dyn d;
        if (!get(s.sh_offset + at, d)) return dispatch::corrupt("object: dynamic section is cut off");
        switch (d.d_tag) {
          case DT_NEEDED:
            return dispatch::invalid("a dependency on another library");
          case DT_INIT:
          case DT_FINI:
          case DT_INIT_ARRAY:
          case DT_FINI_ARRAY:
          case DT_PREINIT_ARRAY:
            return dispatch::invalid("a constructor or destructor");
          case DT_TEXTREL:
            return dispatch::invalid("relocations in code");
          case DT_RPATH:
          case DT_RUNPATH:
          case DT_AUDIT:
          case DT_DEPAUDIT:
          case DT_FILTER:
          case DT_AUXILIARY:
            return dispatch::invalid("a search path or filter");
          default:
            break;
        }
      }
    }
    return {};
  }

  Status check_relocations(const Elf64_Shdr& s) const {
    for (uint64_t at = 0; at + sizeof(Elf64_Rela) <= s.sh_size; at += sizeof(Elf64_Rela)) {
      Elf64_Rela r;
      if (!get(s.sh_offset + at, r)) return dispatch::corrupt("object: relocations are cut off");
      const auto type = ELF64_R_TYPE(r.r_info);
      if (any_data_) continue;
      if (type == R_X86_64_IRELATIVE) return dispatch::invalid("an indirect function (IFUNC)");
      if (type != R_X86_64_RELATIVE && type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT &&
          type != R_X86_64_64)
        return dispatch::invalid("relocation type " + std::to_string(type));
    }
    return {};
  }

  Status check_symbols() {
    for (const Elf64_Shdr& s : sections_) {
      if (s.sh_type != SHT_DYNSYM) continue;
      if (s.sh_link >= sections_.size()) return dispatch::corrupt("object: symbols without names");
      for (uint64_t at = sizeof(Elf64_Sym); at + sizeof(Elf64_Sym) <= s.sh_size; at += sizeof(Elf64_Sym)) {
        Elf64_Sym y;
        if (!get(s.sh_offset + at, y)) return dispatch::corrupt("object: symbols are cut off");
        const std::string name(string_at(sections_[s.sh_link], y.st_name));
        const int type = ELF64_ST_TYPE(y.st_info);
        if (type == STT_GNU_IFUNC && !any_data_)
          return dispatch::invalid("an indirect function (IFUNC): " + name);
        if (type == STT_TLS && !any_data_) return dispatch::invalid("thread-local storage: " + name);
        if (y.st_shndx != SHN_UNDEF) {
          if (type == STT_FUNC) facts_.exports.push_back(name);
          continue;
        }
        if (!any_symbol_ &&
            std::find(kAllowedSymbols.begin(), kAllowedSymbols.end(), name) == kAllowedSymbols.end())
          return dispatch::invalid("calls '" + name +
                                   "': a kernel calls mem* and libm's scalar functions alone");
      }
    }
    return {};
  }

  std::span<const uint8_t> bytes_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
  BinaryFacts facts_;
  bool any_data_, any_symbol_, any_instruction_;  // switched off by a test
};

}  // namespace

dispatch::Result<BinaryFacts> check_binary(std::span<const uint8_t> object,
                                           std::span<const std::string> required_exports, DefencesOff off) {
  return Object(object, off).check(required_exports);
}

}  // namespace niche::evolve
