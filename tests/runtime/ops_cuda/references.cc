#include "tests/runtime/ops_cuda/references.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace niche::ops_cuda_test {
namespace {

using dispatch::Problem;
using Out = std::vector<double>;

double activation(int kind, double v) {
  switch (kind) {
    case 1:
      return std::max(v, 0.0);
    case 2:
      return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    case 3:
      return v / (1 + std::exp(-v));
    default:
      return v;
  }
}

Out gated(const Problem& p, const Input& in) {
  const bool silu = p.definition->schema().op == "silu_mul";
  const bool tanh = !silu && p.definition->attr("tanh") != 0;
  Out y(static_cast<size_t>(p.axes[0] * p.axes[1]));
  for (size_t i = 0; i < y.size(); ++i) {
    const double g = in(0, static_cast<int64_t>(i));
    const double cubic = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
    const double gate = tanh ? 0.5 * g * (1 + std::tanh(cubic)) : activation(silu ? 3 : 2, g);
    y[i] = gate * in(1, static_cast<int64_t>(i));
  }
  return y;
}

Out rope(const Problem& p, const Input& in) {
  const int64_t tokens = p.axes[0], heads = p.axes[1], d = p.axes[2], half = d / 2;
  const bool pairs = p.definition->attr("interleaved") != 0;
  Out y(static_cast<size_t>(tokens * heads * d));
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < half; ++j) {
        const int64_t row = static_cast<int64_t>(in(2, t)) * d, base = (t * heads + h) * d;
        const int64_t a = base + (pairs ? 2 * j : j), b = base + (pairs ? 2 * j + 1 : half + j);
        const double c = in(1, row + j), s = in(1, row + half + j);
        y[static_cast<size_t>(a)] = in(0, a) * c - in(0, b) * s;
        y[static_cast<size_t>(b)] = in(0, b) * c + in(0, a) * s;
      }
  return y;
}

Out linear(const Problem& p, const Input& in) {
  const int64_t m = p.axes[0], n = p.axes[1], k = p.axes[2];
  const bool bias = p.definition->attr("has_bias") != 0;
  const int kind = static_cast<int>(p.definition->attr("activation"));
  Out y(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias ? in(2, j) : 0;
      for (int64_t l = 0; l < k; ++l) sum += in(0, i * k + l) * in(1, j * k + l);
      y[static_cast<size_t>(i * n + j)] = activation(kind, sum);
    }
  return y;
}

Out sdpa(const Problem& p, const Input& in) {
  const int64_t batch = p.axes[0], keys = p.axes[1], hq = p.axes[2], hk = p.axes[3], d = p.axes[4];
  const double given = p.definition->attr("scale");
  const double scale = given != 0 ? given : 1 / std::sqrt(static_cast<double>(d));
  Out y(static_cast<size_t>(batch * hq * d));
  std::vector<double> weight(static_cast<size_t>(keys));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < hq; ++h) {
      const int64_t query = (b * hq + h) * d, from = (b * hk + h / (hq / hk)) * keys * d;
      double top = -1e300, total = 0;
      for (int64_t s = 0; s < keys; ++s) {
        double dot = 0;
        for (int64_t i = 0; i < d; ++i) dot += in(0, query + i) * in(1, from + s * d + i);
        weight[static_cast<size_t>(s)] = dot * scale;
        top = std::max(top, dot * scale);
      }
      for (double& w : weight) total += w = std::exp(w - top);
      for (int64_t i = 0; i < d; ++i) {
        double sum = 0;
        for (int64_t s = 0; s < keys; ++s) sum += weight[static_cast<size_t>(s)] * in(2, from + s * d + i);
        y[static_cast<size_t>(query + i)] = sum / total;
      }
    }
  return y;
}

Out embedding_bag(const Problem& p, const Input& in) {
  const int64_t d = p.axes[1], total = p.axes[2], bags = p.axes[3];
  Out y(static_cast<size_t>(bags * d));
  for (int64_t b = 0; b < bags; ++b) {
    const auto begin = static_cast<int64_t>(in(2, b));
    const int64_t end = b + 1 < bags ? static_cast<int64_t>(in(2, b + 1)) : total;
    for (int64_t c = 0; c < d; ++c) {
      double sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += in(0, static_cast<int64_t>(in(1, i)) * d + c);
      const bool mean = p.definition->attr("mean") != 0 && end > begin;
      y[static_cast<size_t>(b * d + c)] = mean ? sum / static_cast<double>(end - begin) : sum;
    }
  }
  return y;
}

Out ikbo(const Problem& p, const Input& in) {
  const int64_t m = p.axes[0], n = p.axes[1], kc = p.axes[2], ku = p.axes[3], batch = p.axes[4];
  Out y(static_cast<size_t>(batch * m * n));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < kc; ++k) sum += in(0, i * kc + k) * in(2, (b * kc + k) * n + j);
        const auto user = static_cast<int64_t>(in(4, b));
        for (int64_t k = 0; k < ku; ++k) sum += in(1, i * ku + k) * in(3, (user * ku + k) * n + j);
        y[static_cast<size_t>((b * m + i) * n + j)] = sum;
      }
  return y;
}

Out conv1d(const Problem& p, const Input& in) {
  const int64_t batch = p.axes[0], length = p.axes[1], ci = p.axes[2], co = p.axes[3], taps = p.axes[4],
                places = p.axes[5];
  const auto padding = static_cast<int64_t>(p.definition->attr("padding"));
  const bool bias = p.definition->attr("has_bias") != 0;
  Out y(static_cast<size_t>(batch * co * places));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t o = 0; o < co; ++o)
      for (int64_t l = 0; l < places; ++l) {
        double sum = bias ? in(2, o) : 0;
        for (int64_t c = 0; c < ci; ++c)
          for (int64_t k = 0; k < taps; ++k) {
            const int64_t at = l + k - padding;
            if (at >= 0 && at < length)
              sum += in(0, (b * ci + c) * length + at) * in(1, (o * ci + c) * taps + k);
          }
        y[static_cast<size_t>((b * co + o) * places + l)] = sum;
      }
  return y;
}

Out optimized_fm(const Problem& p, const Input& in) {
  const int64_t batch = p.axes[0], n = p.axes[1], d = p.axes[2], k = p.axes[3];
  Out out(static_cast<size_t>(batch * n * k));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double gram = 0;
        for (int64_t l = 0; l < d; ++l) gram += in(0, (b * n + i) * d + l) * in(0, (b * n + j) * d + l);
        for (int64_t c = 0; c < k; ++c)
          out[static_cast<size_t>((b * n + i) * k + c)] += gram * in(1, (b * n + j) * k + c);
      }
  return out;
}

void normalise(double* row, int64_t count, double eps) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += row[i] * row[i];
  for (int64_t i = 0; i < count; ++i) row[i] /= std::sqrt(sum / static_cast<double>(count) + eps);
}

Out pffn(const Problem& p, const Input& in) {
  const int64_t batch = p.axes[0], n = p.axes[1], d = p.axes[2], k = p.axes[3];
  const double eps = p.definition->attr("eps");
  Out y(static_cast<size_t>(batch * n * d));
  Out h(static_cast<size_t>(k));
  for (int64_t row = 0; row < batch * n; ++row) {
    const int64_t weights = row / n * d * k;
    for (int64_t c = 0; c < k; ++c) {
      double sum = in(2, c);
      for (int64_t i = 0; i < d; ++i) sum += in(0, row * d + i) * in(1, weights + i * k + c);
      h[static_cast<size_t>(c)] = activation(2, sum);
    }
    normalise(h.data(), k, eps);
    double* out = y.data() + row * d;
    for (int64_t c = 0; c < d; ++c) {
      out[c] = in(4, c);
      for (int64_t i = 0; i < k; ++i) out[c] += h[static_cast<size_t>(i)] * in(3, weights + i * d + c);
    }
    normalise(out, d, eps);
  }
  return y;
}

}  // namespace

std::vector<double> reference(const Problem& p, int arg, const Input& in) {
  (void)arg;  // each of these operators has one output
  const std::string& op = p.definition->schema().op;
  if (op == "silu_mul" || op == "gelu_mul") return gated(p, in);
  if (op == "rope") return rope(p, in);
  if (op == "linear") return linear(p, in);
  if (op == "sdpa_decode") return sdpa(p, in);
  if (op == "embedding_bag") return embedding_bag(p, in);
  if (op == "ikbo_linear_compression") return ikbo(p, in);
  if (op == "conv1d") return conv1d(p, in);
  if (op == "optimized_fm") return optimized_fm(p, in);
  if (op == "pffn") return pffn(p, in);
  std::fprintf(stderr, "no reference of %s here\n", op.c_str());
  std::abort();
}

std::vector<int64_t> integers(const Problem& p, int arg, std::mt19937_64& random) {
  const std::string& op = p.definition->schema().op;
  std::vector<int64_t> v(static_cast<size_t>(p.arg_elements(arg)));
  int64_t below = 1;
  if (op == "rope") below = p.axes[3];
  if (op == "embedding_bag") below = arg == 1 ? p.axes[0] : p.axes[2] + 1;
  if (op == "ikbo_linear_compression") below = p.axes[5];
  for (int64_t& x : v) x = static_cast<int64_t>(random() % static_cast<uint64_t>(below));
  if (op == "embedding_bag" && arg == 2) {
    std::sort(v.begin(), v.end());
    v[0] = 0;
  }
  return v;
}

}  // namespace niche::ops_cuda_test
