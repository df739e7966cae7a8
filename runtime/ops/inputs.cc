#include "runtime/ops/inputs.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "dispatch/dtype.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;

// Ziggurat of 128 layers for the half normal; r and v as in the paper.
struct Ziggurat {
  static constexpr int kLayers = 128;
  static constexpr double kR = 3.442619855899, kV = 9.91256303526217e-3;
  std::array<double, kLayers + 1> x{}, f{};
  Ziggurat() {
    const auto pdf = [](double v) { return std::exp(-0.5 * v * v); };
    x[0] = kV / pdf(kR);
    x[1] = kR;
    for (int i = 2; i < kLayers; ++i) x[i] = std::sqrt(-2 * std::log(kV / x[i - 1] + pdf(x[i - 1])));
    x[kLayers] = 0;
    for (int i = 0; i <= kLayers; ++i) f[i] = pdf(x[i]);
  }
};

uint16_t bf16_bits(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);  // stays a NaN
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

char* bytes(const DLTensor& t) { return static_cast<char*>(t.data) + t.byte_offset; }

// Calls put(i) for each element and writes what it gives in the tensor's type. The type is chosen once, not
// for each element: filling inputs is a third of the time of judging a small candidate.
template <typename Put>
void write(const DLTensor& t, Put&& put) {
  const int64_t n = elements(t);
  if (same_dtype(t.dtype, kF32)) {
    auto* p = reinterpret_cast<float*>(bytes(t));
    for (int64_t i = 0; i < n; ++i) p[i] = static_cast<float>(put(i));
  } else if (same_dtype(t.dtype, kBf16)) {
    auto* p = reinterpret_cast<uint16_t*>(bytes(t));
    for (int64_t i = 0; i < n; ++i) p[i] = bf16_bits(static_cast<float>(put(i)));
  } else if (same_dtype(t.dtype, kF16)) {
    auto* p = reinterpret_cast<_Float16*>(bytes(t));
    for (int64_t i = 0; i < n; ++i) p[i] = static_cast<_Float16>(static_cast<float>(put(i)));
  } else {
    for (int64_t i = 0; i < n; ++i) store(t, i, put(i));
  }
}

// How much larger the few large values of kExtremes are. fp16 ends at 65504: products of two or three such values,
// in outputs and in what library forms keep between their steps, have to stay below it, or there is nothing to judge.
double large(DLDataType t) { return same_dtype(t, kF16) ? 8 : 4096; }
// Below every normal number of the type.
double denormal(DLDataType t) { return same_dtype(t, kF16) ? 1e-5 : 1e-40; }

}  // namespace

double Rng::normal() {
  static const Ziggurat z;
  while (true) {
    const uint64_t u = next();
    const int layer = static_cast<int>(u & (Ziggurat::kLayers - 1));
    const double sign = (u & 128) ? -1 : 1;
    const double v = static_cast<double>(u >> 11) * 0x1p-53 * z.x[layer];
    if (v < z.x[layer + 1]) return sign * v;
    if (layer == 0) {  // the tail beyond r
      double a, b;
      do {
        a = -std::log(1 - uniform()) / Ziggurat::kR;
        b = -std::log(1 - uniform());
      } while (b + b < a * a);
      return sign * (Ziggurat::kR + a);
    }
    if (z.f[layer] + uniform() * (z.f[layer + 1] - z.f[layer]) < std::exp(-0.5 * v * v)) return sign * v;
  }
}

std::string_view shape_name(Shape shape) {
  constexpr std::array<std::string_view, 6> kNames{"model",          "wide magnitudes",  "constant rows",
                                                   "ties and zeros", "alternating sign", "extremes"};
  return kNames[static_cast<size_t>(shape)];
}

int64_t elements(const DLTensor& t) {
  int64_t n = 1;
  for (int i = 0; i < t.ndim; ++i) n *= t.shape[i];
  return n;
}
int64_t innermost(const DLTensor& t) { return t.ndim ? t.shape[t.ndim - 1] : 1; }
int64_t* i64(const DLTensor& t) { return reinterpret_cast<int64_t*>(bytes(t)); }
float* f32(const DLTensor& t) { return reinterpret_cast<float*>(bytes(t)); }

void store(const DLTensor& t, int64_t i, double value) {
  char* p = bytes(t) + i * static_cast<int64_t>(dtype_bytes(t.dtype));
  if (same_dtype(t.dtype, kF64)) {
    std::memcpy(p, &value, 8);
  } else if (same_dtype(t.dtype, kF32)) {
    const float v = static_cast<float>(value);
    std::memcpy(p, &v, 4);
  } else if (same_dtype(t.dtype, kBf16)) {
    const uint16_t v = bf16_bits(static_cast<float>(value));
    std::memcpy(p, &v, 2);
  } else {
    const _Float16 v = static_cast<_Float16>(value);
    std::memcpy(p, &v, 2);
  }
}

double load(const DLTensor& t, int64_t i) {
  const char* p = bytes(t) + i * static_cast<int64_t>(dtype_bytes(t.dtype));
  if (same_dtype(t.dtype, kF64)) {
    double v;
    std::memcpy(&v, p, 8);
    return v;
  }
  if (same_dtype(t.dtype, kF32)) {
    float v;
    std::memcpy(&v, p, 4);
    return v;
  }
  uint16_t h;
  std::memcpy(&h, p, 2);
  if (same_dtype(t.dtype, kBf16)) return std::bit_cast<float>(static_cast<uint32_t>(h) << 16);
  return static_cast<double>(std::bit_cast<_Float16>(h));
}

void fill(const DLTensor& t, Shape shape, Rng& rng, double scale, double mean, double deviation) {
  if (!t.data) return;
  const int64_t row = innermost(t);
  switch (shape) {
    case Shape::kModel:
      write(t, [&](int64_t) { return mean + deviation * rng.normal(); });
      return;
    case Shape::kWide:
      write(t, [&](int64_t) {
        const double magnitude = std::exp2(rng.uniform(-20, 4));
        return (rng.next() & 1 ? scale : -scale) * magnitude;
      });
      return;
    case Shape::kConstantRows: {
      double value = 0;
      write(t, [&](int64_t i) {
        if (i % row == 0) value = scale * rng.normal();
        return value;
      });
      return;
    }
    case Shape::kTies: {
      constexpr std::array<double, 8> kValues{-1, -0.5, -0.0, 0.0, 0.5, 1, 1, 0.25};
      write(t, [&](int64_t) { return scale * kValues[rng.next() & 7]; });
      return;
    }
    case Shape::kAlternating: {
      const double slope = 1.0 / static_cast<double>(row);
      const double start = rng.uniform(0.5, 1.5);
      write(t, [&](int64_t i) {
        const int64_t c = i % row;
        const double a = scale * (start + slope * static_cast<double>(c));
        return c & 1 ? -a : a;
      });
      return;
    }
    case Shape::kExtremes:
      write(t, [&, high = large(t.dtype), low = denormal(t.dtype)](int64_t) {
        const uint64_t pick = rng.next() & 63;
        if (pick == 0) return scale * high * rng.normal();
        if (pick == 1) return low * rng.normal();
        if (pick == 2) return 0.0;
        return scale * rng.normal();
      });
      return;
  }
}

void fill_uniform(const DLTensor& t, Rng& rng, double lo, double hi) {
  if (t.data) write(t, [&](int64_t) { return rng.uniform(lo, hi); });
}

}  // namespace niche::ops
