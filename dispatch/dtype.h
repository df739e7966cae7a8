// Element types, as DLPack's DLDataType, with the names used in kernel names, JSON and logs.
#pragma once

#include <dlpack/dlpack.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "dispatch/base/status.h"

namespace niche::dispatch {

inline constexpr DLDataType kF64{kDLFloat, 64, 1};
inline constexpr DLDataType kF32{kDLFloat, 32, 1};
inline constexpr DLDataType kF16{kDLFloat, 16, 1};
inline constexpr DLDataType kBf16{kDLBfloat, 16, 1};
inline constexpr DLDataType kI64{kDLInt, 64, 1};
inline constexpr DLDataType kI32{kDLInt, 32, 1};
inline constexpr DLDataType kU8{kDLUInt, 8, 1};

constexpr bool same_dtype(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
constexpr size_t dtype_bytes(DLDataType t) { return static_cast<size_t>(t.bits) * t.lanes / 8; }
constexpr bool is_float(DLDataType t) { return t.code == kDLFloat || t.code == kDLBfloat; }

// "f32", "bf16", "i64", ...; "?" for what niche does not know.
std::string_view dtype_name(DLDataType t);
// The inverse; also takes FlashInfer Trace's names ("float32", "bfloat16", "int64"). kInvalid names the text.
Result<DLDataType> parse_dtype(std::string_view name);

}  // namespace niche::dispatch
