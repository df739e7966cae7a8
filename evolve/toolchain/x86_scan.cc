#include "evolve/toolchain/x86_scan.h"

#include <algorithm>

// Opcode maps: Intel SDM volume 2, appendix A, and AMD APM volume 3, appendix A. Only lengths matter here, so
// an instruction is: prefixes, opcode, ModRM (with SIB and displacement), immediate.

namespace niche::evolve {
namespace {

struct Decoded {
  size_t length = 0;
  int map = 0;  // 1: one-byte opcodes, 2: 0F, 3: 0F 38, 4: 0F 3A, then VEX/EVEX/XOP's own numbers
  uint8_t opcode = 0;
  uint8_t modrm = 0;
  uint8_t prefix = 0;  // last of 66 F2 F3, 0: none
  bool vex = false;
};

// Immediate bytes of a one-byte opcode; -1: undefined in 64-bit mode. `wide`: REX.W; `half`: operand size 16.
int immediate_map1(uint8_t op, uint8_t modrm, bool wide, bool half, bool address32) {
  const int iz = half ? 2 : 4;
  if (op < 0x40) {
    const int low = op & 7;
    if (low == 4) return 1;
    if (low == 5) return iz;
    return low >= 6 ? -1 : 0;  // push/pop of segment registers, BCD: gone in 64-bit mode
  }
  if (op >= 0x70 && op <= 0x7f) return 1;
  switch (op) {
    case 0x68:
    case 0x69:
    case 0x81:
    case 0xc7:
    case 0xa9:
      return iz;
    case 0x6a:
    case 0x6b:
    case 0x80:
    case 0x83:
    case 0xc0:
    case 0xc1:
    case 0xc6:
    case 0xa8:
    case 0xcd:
      return 1;
    case 0xe8:
    case 0xe9:
      return 4;
    case 0xeb:
    case 0xe0:
    case 0xe1:
    case 0xe2:
    case 0xe3:
    case 0xe4:
    case 0xe5:
    case 0xe6:
    case 0xe7:
      return 1;
    case 0xc2:
    case 0xca:
      return 2;
    case 0xc8:
      return 3;
    case 0xa0:
    case 0xa1:
    case 0xa2:
    case 0xa3:
      return address32 ? 4 : 8;
    case 0xf6:
      return (modrm & 0x38) <= 0x08 ? 1 : 0;
    case 0xf7:
      return (modrm & 0x38) <= 0x08 ? iz : 0;
    case 0x60:
    case 0x61:
    case 0x82:
    case 0x9a:
    case 0xce:
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xea:
      return -1;
    default:
      break;
  }
  if (op >= 0xb0 && op <= 0xb7) return 1;
  if (op >= 0xb8 && op <= 0xbf) return wide ? 8 : iz;
  return 0;
}

bool modrm_map1(uint8_t op) {
  if (op < 0x40) return (op & 7) < 4;
  if (op == 0x63 || op == 0x69 || op == 0x6b) return true;
  if (op >= 0x80 && op <= 0x8f) return true;
  if (op == 0xc0 || op == 0xc1 || op == 0xc6 || op == 0xc7) return true;
  if (op >= 0xd0 && op <= 0xd3) return true;
  if (op >= 0xd8 && op <= 0xdf) return true;
  return op == 0xf6 || op == 0xf7 || op == 0xfe || op == 0xff;
}

bool modrm_map2(uint8_t op) {
  switch (op) {
    case 0x05:
    case 0x06:
    case 0x07:
    case 0x08:
    case 0x09:
    case 0x0b:
    case 0x0e:
    case 0x30:
    case 0x31:
    case 0x32:
    case 0x33:
    case 0x34:
    case 0x35:
    case 0x37:
    case 0x77:
    case 0xa0:
    case 0xa1:
    case 0xa2:
    case 0xa8:
    case 0xa9:
    case 0xaa:
      return false;
    default:
      break;
  }
  if (op >= 0x80 && op <= 0x8f) return false;
  return op < 0xc8 || op > 0xcf;
}

int immediate_map2(uint8_t op) {
  if (op >= 0x80 && op <= 0x8f) return 4;
  if (op >= 0x70 && op <= 0x73) return 1;
  switch (op) {
    case 0xa4:
    case 0xac:
    case 0xba:
    case 0xc2:
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return 1;
    case 0x04:
    case 0x0a:
    case 0x0c:
    case 0x24:
    case 0x25:
    case 0x26:
    case 0x27:
    case 0x36:
    case 0x39:
    case 0x3b:
    case 0x3c:
    case 0x3d:
    case 0x3e:
    case 0x3f:
      return -1;
    default:
      return 0;
  }
}

class Decoder {
 public:
  explicit Decoder(std::span<const uint8_t> code) : code_(code) {}

  Decoded decode() {
    while (more() && prefix(code_[at_])) ++at_;
    if (!more()) return {};
    uint8_t rex = 0;
    if ((code_[at_] & 0xf0) == 0x40) {
      rex = code_[at_++];
      if (!more()) return {};
    }
    const uint8_t first = code_[at_];
    const bool wide = (rex & 8) != 0;
    if (rex == 0 && (first == 0xc5 || first == 0xc4)) return vex(first);
    if (rex == 0 && first == 0x62) return evex();
    if (rex == 0 && first == 0x8f && at_ + 1 < code_.size() && (code_[at_ + 1] & 0x1f) >= 8) return xop();
    ++at_;
    if (first != 0x0f) {
      d_.map = 1;
      d_.opcode = first;
      if (modrm_map1(first) && !modrm()) return {};
      return finish(immediate_map1(first, d_.modrm, wide, half_ && !wide, address32_));
    }
    if (!more()) return {};
    const uint8_t second = code_[at_++];
    if (second == 0x38 || second == 0x3a) {
      if (!more()) return {};
      d_.map = second == 0x38 ? 3 : 4;
      d_.opcode = code_[at_++];
      if (!modrm()) return {};
      return finish(d_.map == 4 ? 1 : 0);
    }
    d_.map = 2;
    d_.opcode = second;
    if (second == 0x0f) return modrm() ? finish(1) : Decoded{};  // 3DNow!
    if (modrm_map2(second) && !modrm()) return {};
    return finish(immediate_map2(second));
  }

 private:
  bool more() const { return at_ < code_.size(); }

  bool prefix(uint8_t b) {
    switch (b) {
      case 0x66:
        half_ = true;
        [[fallthrough]];
      case 0xf2:
      case 0xf3:
        d_.prefix = b;
        return true;
      case 0x67:
        address32_ = true;
        return true;
      case 0x2e:
      case 0x36:
      case 0x3e:
      case 0x26:
      case 0x64:
      case 0x65:
      case 0xf0:
        return true;
      default:
        return false;
    }
  }

  bool modrm() {
    if (!more()) return false;
    d_.modrm = code_[at_++];
    const int mod = d_.modrm >> 6, rm = d_.modrm & 7;
    // mov to and from control and debug registers ignore mod; they are refused anyway.
    if (mod == 3) return true;
    size_t displacement = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    if (rm == 4) {
      if (!more()) return false;
      const uint8_t sib = code_[at_++];
      if (mod == 0 && (sib & 7) == 5) displacement = 4;
    } else if (mod == 0 && rm == 5) {
      displacement = 4;
    }
    at_ += displacement;
    return true;
  }

  Decoded finish(int immediate) {
    if (immediate < 0) return {};
    at_ += static_cast<size_t>(immediate);
    if (at_ > code_.size() || at_ > 15) return {};
    d_.length = at_;
    return d_;
  }

  Decoded vex(uint8_t first) {
    d_.vex = true;
    const size_t header = first == 0xc5 ? 2 : 3;
    if (at_ + header >= code_.size()) return {};
    const int map = first == 0xc5 ? 1 : code_[at_ + 1] & 0x1f;
    at_ += header;
    return vex_body(map);
  }

  Decoded evex() {
    d_.vex = true;
    if (at_ + 4 >= code_.size()) return {};
    const int map = code_[at_ + 1] & 7;
    at_ += 4;
    return vex_body(map);
  }

  Decoded vex_body(int map) {
    d_.map = map + 1;  // VEX map 1 is 0F
    d_.opcode = code_[at_++];
    if (map == 1 && d_.opcode == 0x77) return finish(0);  // vzeroupper
    if (!modrm()) return {};
    switch (map) {
      case 1:
        return finish(immediate_map2(d_.opcode));
      case 2:
      case 5:
      case 6:
        return finish(0);
      case 3:
        return finish(1);
      default:
        return {};
    }
  }

  Decoded xop() {
    d_.vex = true;
    if (at_ + 3 >= code_.size()) return {};
    const int map = code_[at_ + 1] & 0x1f;
    at_ += 3;
    d_.map = 100 + map;
    d_.opcode = code_[at_++];
    if (!modrm()) return {};
    switch (map) {
      case 8:
        return finish(1);
      case 9:
        return finish(0);
      case 10:
        return finish(4);
      default:
        return {};
    }
  }

  std::span<const uint8_t> code_;
  size_t at_ = 0;
  bool half_ = false, address32_ = false;
  Decoded d_;
};

// Two-byte opcodes whose ModRM.reg tells one instruction from another: 0F 01, 0F AE, 0F C7, 0F 00.
const char* forbidden_group(const Decoded& d) {
  const int reg = (d.modrm >> 3) & 7;
  const bool memory = (d.modrm >> 6) != 3;
  switch (d.opcode) {
    case 0x00:
      return "segment or task register instruction";
    case 0x01:
      if (!memory && d.modrm == 0xf9) return "rdtscp";
      return "system instruction 0F 01";
    case 0xae:
      if (memory)
        return reg == 2               ? "ldmxcsr"
               : reg == 1 || reg == 5 ? "fxrstor or xrstor"
               : reg == 7             ? nullptr
               : reg == 3             ? nullptr
                                      : "xsave";
      if (d.prefix == 0xf3) return "rd/wr fs/gs base";
      return reg >= 5 ? nullptr : "system instruction 0F AE";  // the fences
    case 0xc7:
      if (memory) return reg == 1 ? nullptr : "system instruction 0F C7";  // cmpxchg8b/16b
      return "rdrand, rdseed or rdpid";
    default:
      return nullptr;
  }
}

const char* forbidden(const Decoded& d) {
  if (d.vex) return d.map == 2 && d.opcode == 0xae && ((d.modrm >> 3) & 7) == 2 ? "vldmxcsr" : nullptr;
  if (d.map == 1) switch (d.opcode) {
      case 0xcc:
        return "int3";
      case 0xcd:
        return "int";
      case 0xcf:
        return "iret";
      case 0xf1:
        return "int1";
      case 0xf4:
        return "hlt";
      case 0xca:
      case 0xcb:
        return "far return";
      case 0x8e:
        return "mov to a segment register";
      case 0x9d:
        return "popf";
      case 0xe4:
      case 0xe5:
      case 0xe6:
      case 0xe7:
      case 0xec:
      case 0xed:
      case 0xee:
      case 0xef:
      case 0x6c:
      case 0x6d:
      case 0x6e:
      case 0x6f:
        return "port input or output";
      case 0xfa:
      case 0xfb:
        return "cli or sti";
      case 0xfd:
        return "std";
      case 0xd9:
        return (d.modrm >> 6) != 3 && ((d.modrm >> 3) & 7) == 5   ? "fldcw"
               : (d.modrm >> 6) != 3 && ((d.modrm >> 3) & 7) == 4 ? "fldenv"
                                                                  : nullptr;
      case 0xff:
        return ((d.modrm >> 3) & 7) == 3 || ((d.modrm >> 3) & 7) == 5 ? "far call or jump" : nullptr;
      default:
        return nullptr;
    }
  if (d.map == 2) switch (d.opcode) {
      case 0x05:
        return "syscall";
      case 0x07:
        return "sysret";
      case 0x34:
        return "sysenter";
      case 0x35:
        return "sysexit";
      case 0x31:
        return "rdtsc";
      case 0x33:
        return "rdpmc";
      case 0x30:
      case 0x32:
        return "rdmsr or wrmsr";
      case 0xa2:
        return "cpuid";
      case 0x06:
      case 0x08:
      case 0x09:
      case 0x20:
      case 0x21:
      case 0x22:
      case 0x23:
        return "privileged instruction";
      case 0x37:
        return "getsec";
      case 0xaa:
        return "rsm";
      case 0xa1:
      case 0xa9:
      case 0xb2:
      case 0xb4:
      case 0xb5:
        return "load of a segment register";
      default:
        return forbidden_group(d);
    }
  return nullptr;
}

}  // namespace

size_t instruction_length(std::span<const uint8_t> code) { return Decoder(code).decode().length; }

ForbiddenInstruction find_forbidden_instruction(std::span<const uint8_t> code) {
  for (size_t at = 0; at < code.size();) {
    const Decoded d = Decoder(code.subspan(at, std::min<size_t>(code.size() - at, 16))).decode();
    if (d.length == 0) return {"unknown", at};
    if (const char* name = forbidden(d)) return {name, at};
    at += d.length;
  }
  return {};
}

}  // namespace niche::evolve
