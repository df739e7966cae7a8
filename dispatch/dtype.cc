#include "dispatch/dtype.h"

#include <array>

namespace niche::dispatch {
namespace {

struct Row {
  DLDataType type;
  std::string_view short_name;
  std::string_view trace_name;  // FlashInfer Trace's spelling
};

constexpr std::array<Row, 7> kRows{{{kF64, "f64", "float64"},
                                    {kF32, "f32", "float32"},
                                    {kF16, "f16", "float16"},
                                    {kBf16, "bf16", "bfloat16"},
                                    {kI64, "i64", "int64"},
                                    {kI32, "i32", "int32"},
                                    {kU8, "u8", "uint8"}}};

}  // namespace

std::string_view dtype_name(DLDataType t) {
  for (const Row& r : kRows)
    if (same_dtype(r.type, t)) return r.short_name;
  return "?";
}

Result<DLDataType> parse_dtype(std::string_view name) {
  for (const Row& r : kRows)
    if (r.short_name == name || r.trace_name == name) return r.type;
  return invalid("unknown element type '" + std::string(name) + "'; known: f64 f32 f16 bf16 i64 i32 u8");
}

}  // namespace niche::dispatch
