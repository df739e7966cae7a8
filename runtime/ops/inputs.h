// Seeded input distributions for operators: number 0 is what the model usually sees, the others are
// adversarial.
//
// Thread-safety: free functions over the caller's memory; a Rng belongs to one thread.
// Cost: about 2 ns an element (normal: 5 ns). Every fill writes the whole tensor, row-major and
// contiguous; a tensor without memory (an absent optional argument) is left alone.
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>
#include <string_view>

namespace niche::ops {

// splitmix64 (Steele et al., 2014): one add and one finaliser a draw; streams of different seeds do not
// overlap in practice.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  double uniform(double lo, double hi) { return lo + (hi - lo) * uniform(); }
  int64_t below(int64_t n) {  // [0, n); requires n > 0. Bias below n / 2^64
    return static_cast<int64_t>((static_cast<unsigned __int128>(next()) * static_cast<uint64_t>(n)) >> 64);
  }
  double normal();  // mean 0, standard deviation 1, exact tails (Marsaglia and Tsang's ziggurat, 2000)

 private:
  uint64_t state_;
};

// The shapes of trouble for a floating argument.
enum class Shape {
  kModel,         // normal, with the mean and deviation that the operator gives
  kWide,          // either sign, magnitudes log-uniform over 2^-20 .. 2^4: a few values carry every sum
  kConstantRows,  // each innermost row holds one value: variance 0, and sums drift the same way at each step
  kTies,          // few values, both zeros among them: equal maxima, exact cancellation
  kAlternating,   // +a -a +a ... with a growing: sums cancel
  kExtremes,      // mostly normal; 1 in 64 larger by 2^12 (fp16: 2^3), some denormal, some zero
};
std::string_view shape_name(Shape shape);

// Fills a floating tensor (f32, f64, bf16, f16). `scale` stretches every shape but kModel; kModel takes mean
// and deviation.
void fill(const DLTensor& t, Shape shape, Rng& rng, double scale = 1, double mean = 0, double deviation = 1);
// Uniform in [lo, hi).
void fill_uniform(const DLTensor& t, Rng& rng, double lo, double hi);

// Elements of a tensor and its innermost extent (1 for a scalar).
int64_t elements(const DLTensor& t);
int64_t innermost(const DLTensor& t);
// First byte of the tensor, as int64 or as double-converted access to element `i` of a floating tensor.
int64_t* i64(const DLTensor& t);
float* f32(const DLTensor& t);
void store(const DLTensor& t, int64_t i, double value);  // rounded to nearest even
double load(const DLTensor& t, int64_t i);

}  // namespace niche::ops
