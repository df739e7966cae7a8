// ProblemKey: what the table looks up: 32 bytes, injective, made of a call's raw integers; no strings.
//
//   word 0   definition 24 | layout 40
//   word 1   tenant 8 | device ordinal 8 | CPU threads 8 | constraints 7 | wide 1 | axis 4: 32
//   word 2   axis 0: 32 | axis 1: 32
//   word 3   axis 2: 32 | axis 3: 32
//
// What does not fit (an axis outside [0, 2^32), a tenant, ordinal or thread count above 255) sets `wide`;
// words 2 and 3 then carry a 128-bit hash of everything, and a table hit compares the whole Problem
// (WideProblem) before it counts.
//
// The words are built in registers and compared one by one. Comparing a key just built from scalars with one
// vector load stalls on store forwarding: 4 ns lost on Zen 3.
//
// Thread-safety: values. Cost: pack 2 ns, hash 2 ns (two multiplications side by side), compare 1 ns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch/base/hash.h"
#include "dispatch/base/hot_inline.h"
#include "dispatch/constraints.h"
#include "dispatch/definition.h"

namespace niche::dispatch {

// How a call's arguments lie in memory, in 40 bits: what a kernel's Guard asks about. Zero strides and
// aliases is what every kernel of today requires ("plain").
class LayoutClass {
 public:
  enum Stride : uint8_t {
    kContiguous = 0,
    kRowStrided = 1,
    kOther = 2
  };  // an absent argument counts as contiguous

  constexpr LayoutClass() = default;
  static constexpr LayoutClass from_bits(uint64_t bits) { return LayoutClass(bits & kMask); }
  // All arguments contiguous, no overlap, every pointer a multiple of 2^log2_alignment.
  static constexpr LayoutClass plain(int log2_alignment) { return LayoutClass().aligned(log2_alignment); }
  // The class of pointers whose bitwise OR is `ored` (one OR an argument, one count at the end).
  static LayoutClass plain_at(uintptr_t ored) { return plain(__builtin_ctzll(uint64_t{ored} | 64)); }

  constexpr LayoutClass strided(int arg, Stride s) const {
    return LayoutClass((bits_ & ~(uint64_t{3} << 2 * arg)) | uint64_t{s} << 2 * arg);
  }
  constexpr LayoutClass aliases_output(int arg) const {
    return LayoutClass(bits_ | uint64_t{1} << (24 + arg));
  }
  constexpr LayoutClass aligned(int log2_alignment) const {
    const int c = log2_alignment > 6 ? 6 : log2_alignment;  // 64 bytes and more is one class
    return LayoutClass((bits_ & kPlainMask) | static_cast<uint64_t>(c) << 36);
  }
  constexpr uint64_t bits() const { return bits_; }
  constexpr bool plain() const { return (bits_ & kPlainMask) == 0; }
  constexpr int alignment_bytes() const { return 1 << (bits_ >> 36); }
  // Can a kernel with this Guard run here?
  constexpr bool fits(const Guard& g) const { return plain() && alignment_bytes() >= g.alignment_bytes; }
  constexpr bool operator==(const LayoutClass&) const = default;

 private:
  static constexpr uint64_t kMask = (uint64_t{1} << 40) - 1, kPlainMask = (uint64_t{1} << 36) - 1;
  constexpr explicit LayoutClass(uint64_t bits) : bits_(bits) {}
  uint64_t bits_ = 0;
};
static_assert(kMaxArgs <= 12, "LayoutClass has room for 12 arguments");

// The part of a key that a call site knows beforehand.
struct KeyPrefix {
  uint32_t definition = 0;  // the dispatcher's number of a Definition: 1 .. 2^24-1
  uint32_t tenant = 0;
  uint32_t device = 0;   // 0: the host; n: device n - 1 of this machine
  uint32_t threads = 1;  // the Executor's
  ConstraintSet constraints{};
  bool operator==(const KeyPrefix&) const = default;
};

// Everything a key stands for: what a wide key is compared by, and what a fitting key decodes to.
struct WideProblem {
  KeyPrefix prefix;
  LayoutClass layout;
  int64_t axes[kMaxVarAxes] = {};
  bool operator==(const WideProblem& o) const {
    bool same = prefix == o.prefix && layout == o.layout;
    for (int i = 0; i < kMaxVarAxes; ++i) same &= axes[i] == o.axes[i];
    return same;
  }
};

struct ProblemKey {
  uint64_t w0 = 0, w1 = 0, w2 = 0, w3 = 0;

  static constexpr uint64_t kWideBit = uint64_t{1} << 31;
  static constexpr uint32_t kDefinitionMax = (1u << 24) - 1;

  constexpr bool operator==(const ProblemKey&) const = default;
  // Word by word, the one that differs most often first: keys of one call site differ in their axes, so that
  // a comparison that fails ends at the first branch, and none of the four is hard to predict.
  constexpr bool equals(uint64_t a, uint64_t b, uint64_t c, uint64_t d) const {
    return w2 == c && w3 == d && w0 == a && w1 == b;
  }

  constexpr uint32_t definition() const { return static_cast<uint32_t>(w0 & kDefinitionMax); }
  constexpr LayoutClass layout() const { return LayoutClass::from_bits(w0 >> 24); }
  constexpr ConstraintSet constraints() const {
    return ConstraintSet::from_bits(static_cast<uint8_t>(w1 >> 24 & 0x7f));
  }
  constexpr bool wide() const { return (w1 & kWideBit) != 0; }
  // SiteOptions::device. Requires: !wide().
  constexpr uint32_t device() const { return static_cast<uint32_t>(w1 >> 8 & 0xff); }
  // What a region has to agree with: definition, tenant, device, threads. Requires: !wide().
  constexpr uint64_t context() const { return (w0 & kDefinitionMax) << 24 | (w1 & 0xffffff); }

  // The parts back. Requires: !wide().
  constexpr WideProblem decode() const {
    WideProblem p;
    p.prefix = {definition(), static_cast<uint32_t>(w1 & 0xff), static_cast<uint32_t>(w1 >> 8 & 0xff),
                static_cast<uint32_t>(w1 >> 16 & 0xff), constraints()};
    p.layout = layout();
    const int64_t axes[kMaxVarAxes] = {lo(w2), hi(w2), lo(w3), hi(w3), hi(w1)};
    for (int i = 0; i < kMaxVarAxes; ++i) p.axes[i] = axes[i];
    return p;
  }

  // The words folded: wyhash's mum (Wang Yi, 2019) on two pairs. Good in high and low bits alike.
  NICHE_HOT_INLINE uint64_t hash() const {
    return mum(w0 ^ 0xa0761d6478bd642fULL, w2 ^ 0xe7037ed1a0b428dbULL) ^
           mum(w1 ^ 0x8ebc6af09c88c6e3ULL, w3 ^ 0x589965cc75374cc3ULL);
  }

  static uint64_t mum(uint64_t a, uint64_t b) {
#if defined(__GNUC__) && defined(__x86_64__)
    // GCC 12 sends one half of an __int128 product through the stack here: 5 cycles lost on the way to the
    // slot.
    uint64_t low, high;
    asm("mulq %3" : "=a"(low), "=d"(high) : "0"(a), "rm"(b) : "cc");
    return low ^ high;
#else
    const unsigned __int128 p = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(p) ^ static_cast<uint64_t>(p >> 64);
#endif
  }

 private:
  static constexpr int64_t lo(uint64_t w) { return static_cast<int64_t>(w & 0xffffffff); }
  static constexpr int64_t hi(uint64_t w) { return static_cast<int64_t>(w >> 32); }
};
static_assert(sizeof(ProblemKey) == 32);

// A KeyPrefix in the form that pack_key wants: two words with holes, and what makes every key of it wide.
struct PackedPrefix {
  uint64_t w0 = 0, w1 = 0;
  uint32_t wide = 0;  // not 0 where the prefix does not fit
  constexpr PackedPrefix() = default;
  constexpr explicit PackedPrefix(const KeyPrefix& p)
      : w0(p.definition),
        w1((p.tenant & 0xff) | (p.device & 0xff) << 8 | (p.threads & 0xff) << 16 |
           static_cast<uint64_t>(p.constraints.bits()) << 24),
        wide((p.tenant | p.device | p.threads) > 0xff ? 1 : 0) {}
  // The same call site under further demands (RequestScope under capture), which `bits_of` made.
  constexpr PackedPrefix with(uint64_t demands) const {
    PackedPrefix r = *this;
    r.w1 |= demands;
    return r;
  }
  // Requires: no workspace limit, whose classes do not join by OR.
  static constexpr uint64_t bits_of(ConstraintSet c) { return static_cast<uint64_t>(c.bits()) << 24; }
};

// The cold half of pack_key: some 20 ns.
ProblemKey pack_wide_key(const KeyPrefix& prefix, ConstraintSet constraints, LayoutClass layout,
                         const int64_t* axes);

// `axes`: kMaxVarAxes values in Definition::var_axes() order, unused ones 0. `prefix` is needed in full only
// for wide keys. About 2 ns.
NICHE_HOT_INLINE ProblemKey pack_key(const PackedPrefix& packed, const KeyPrefix& prefix, LayoutClass layout,
                                     const int64_t* axes) {
  const uint64_t a0 = static_cast<uint64_t>(axes[0]), a1 = static_cast<uint64_t>(axes[1]),
                 a2 = static_cast<uint64_t>(axes[2]), a3 = static_cast<uint64_t>(axes[3]),
                 a4 = static_cast<uint64_t>(axes[4]);
  uint64_t w0 = packed.w0 | layout.bits() << 24, w1 = packed.w1 | a4 << 32, w2 = a0 | a1 << 32,
           w3 = a2 | a3 << 32;
  if (((a0 | a1 | a2 | a3 | a4) >> 32 | packed.wide) != 0) [[unlikely]] {
    const auto constraints = ConstraintSet::from_bits(static_cast<uint8_t>(packed.w1 >> 24 & 0x7f));
    const ProblemKey wide = pack_wide_key(prefix, constraints, layout, axes);
    w0 = wide.w0;
    w1 = wide.w1;
    w2 = wide.w2;
    w3 = wide.w3;
  }
  // Keeps the words in integer registers: GCC 12 otherwise builds pairs of them in vector registers, stores
  // those and loads the halves back: 2 ns lost on Zen 3.
#if defined(__GNUC__) && defined(__x86_64__)
  asm("" : "+r"(w0), "+r"(w1), "+r"(w2), "+r"(w3));
#endif
  return {w0, w1, w2, w3};
}

// The same from all parts: for publishers and tests.
inline ProblemKey pack_key(const WideProblem& p) {
  return pack_key(PackedPrefix(p.prefix), p.prefix, p.layout, p.axes);
}

struct ProblemKeyHash {
  size_t operator()(const ProblemKey& k) const { return static_cast<size_t>(k.hash()); }
};

}  // namespace niche::dispatch
