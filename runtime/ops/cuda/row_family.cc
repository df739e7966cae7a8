// rms_norm, fused_add_rms_norm (both forms), layer_norm, softmax: a row is read once into registers, reduced,
// and written.
//
// Schedules: `threads` a row and `rows` a block; `vec` elements a load; `persist` 0 gives every block its own
// rows, else a grid of that many blocks a multiprocessor walks over them; `ahead` then loads the next row
// before the current one is reduced; `keep` pins the packed values across the reduction (without it the
// compiler keeps unpacked floats alive, and long rows spill); `load` and `store` are cache hints.
// On an H200 one block a row with 256 threads reaches the speed of a copy; warp-per-row and bulk-copy rings
// lost there, and so did evict-first hints (docs/cuda.md).
#include "runtime/ops/cuda/cuda_space_family.h"
#include "runtime/ops/cuda/families.h"

namespace niche::ops_cuda {
namespace {

enum class Form { kRms, kAdd, kAddInPlace, kLayer, kSoftmax };

constexpr std::string_view kBody = R"(
enum : int { STEP = VEC * THREADS, CHUNKS = (N + STEP - 1) / STEP };
typedef Vec<T, VEC> V;
enum { RMS, ADD, ADD_IN_PLACE, LAYER, SOFTMAX };
// fp32's error bound wants the last bits of exp; 16-bit results do not show them.
NI float expo(float v) { return sizeof(T) == 4 ? expf(v) : __expf(v); }
struct Row { V x[CHUNKS]; V r[FORM == ADD || FORM == ADD_IN_PLACE ? CHUNKS : 1]; };

NI bool inside(int c, int t) { return N % STEP == 0 || c * STEP + t * VEC < N; }

NI void load_row(Row& row, const T* x, const T* residual, i64 m, bool active, int t) {
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const i64 at = m * N + c * STEP + t * VEC;
    if (active && inside(c, t)) {
      row.x[c] = ld<LOAD, T, VEC>(x + at);
      if constexpr (FORM == ADD || FORM == ADD_IN_PLACE) row.r[c] = ld<LOAD, T, VEC>(residual + at);
    } else {
#pragma unroll
      for (int i = 0; i < V::WORDS; ++i) {
        row.x[c].w[i] = 0;
        if constexpr (FORM == ADD || FORM == ADD_IN_PLACE) row.r[c].w[i] = 0;
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS * ROWS) run(const __grid_constant__ Args a) {
  __shared__ float scratch[4][THREADS * ROWS / 32 + 1];
  const int t = threadIdx.x % THREADS, lane_row = threadIdx.x / THREADS;
  const i64 rows = a.n[0];
  const T *x, *residual = nullptr, *weight = nullptr, *bias = nullptr;
  T *y, *sum = nullptr;
  if constexpr (FORM == ADD_IN_PLACE) {
    weight = (const T*)a.p[0], x = (const T*)a.p[1], residual = (const T*)a.p[2];
    y = (T*)a.p[1], sum = (T*)a.p[2];
  } else if constexpr (FORM == ADD) {
    x = (const T*)a.p[0], residual = (const T*)a.p[1], weight = (const T*)a.p[2];
    y = (T*)a.p[3], sum = (T*)a.p[4];
  } else if constexpr (FORM == LAYER) {
    x = (const T*)a.p[0], weight = (const T*)a.p[1], bias = (const T*)a.p[2], y = (T*)a.p[3];
  } else if constexpr (FORM == SOFTMAX) {
    x = (const T*)a.p[0], y = (T*)a.p[1];
  } else {
    x = (const T*)a.p[0], weight = (const T*)a.p[1], y = (T*)a.p[2];
  }
  int parity = 0;
  Row row;
  i64 first = (i64)blockIdx.x * ROWS;
  if constexpr (AHEAD) load_row(row, x, residual, first + lane_row, first + lane_row < rows, t);
  for (; first < rows; first += (i64)gridDim.x * ROWS) {
    const i64 m = first + lane_row;
    const bool active = m < rows;
    Row now;
    if constexpr (AHEAD) {
      now = row;
      const i64 next = m + (i64)gridDim.x * ROWS;
      load_row(row, x, residual, next, next < rows, t);
    } else {
      load_row(now, x, residual, m, active, t);
    }
    float scale, shift = 0;  // y = x * scale + shift, then weight and bias
    float f[VEC];
    if constexpr (FORM == ADD || FORM == ADD_IN_PLACE) {
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        float g[VEC];
        unpack(now.x[c], f);
        unpack(now.r[c], g);
#pragma unroll
        for (int i = 0; i < VEC; ++i) f[i] += g[i];
        now.x[c] = pack<T, VEC>(f);  // rounded before it is normalised
        if (active && inside(c, t)) st<STORE>(sum + m * N + c * STEP + t * VEC, now.x[c]);
      }
    }
    if constexpr (FORM == SOFTMAX) {
      float top = -__int_as_float(0x7f800000);
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        unpack(now.x[c], f);
        if (inside(c, t))
#pragma unroll
          for (int i = 0; i < VEC; ++i) top = fmaxf(top, f[i]);
      }
      top = row_reduce<Max, THREADS, ROWS>(top, scratch[parity]);
      if constexpr (KEEP)
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) keep(now.x[c]);
      shift = top;
      float total = 0;
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        unpack(now.x[c], f);
        if (inside(c, t))
#pragma unroll
          for (int i = 0; i < VEC; ++i) total += expo(f[i] - top);
      }
      total = row_reduce<Sum, THREADS, ROWS>(total, scratch[2 + parity]);
      scale = 1.0f / total;
    } else {
      float mean = 0;
      if constexpr (FORM == LAYER) {
        float total = 0;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
          unpack(now.x[c], f);
#pragma unroll
          for (int i = 0; i < VEC; ++i) total += f[i];  // beyond the row: zeros
        }
        mean = row_reduce<Sum, THREADS, ROWS>(total, scratch[2 + parity]) * (1.0f / N);
      }
      float squares = 0;
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        unpack(now.x[c], f);
        if (FORM != LAYER || inside(c, t))
#pragma unroll
          for (int i = 0; i < VEC; ++i) squares = fmaf(f[i] - mean, f[i] - mean, squares);
      }
      squares = row_reduce<Sum, THREADS, ROWS>(squares, scratch[parity]);
      scale = rsqrtf(squares * (1.0f / N) + EPS);
      shift = mean;
    }
    parity ^= 1;
    if constexpr (KEEP)
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) keep(now.x[c]);
    if (active) {
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        if (!inside(c, t)) continue;
        const int col = c * STEP + t * VEC;
        unpack(now.x[c], f);
        if constexpr (FORM == SOFTMAX) {
#pragma unroll
          for (int i = 0; i < VEC; ++i) f[i] = expo(f[i] - shift) * scale;
        } else {
          float w[VEC], b[VEC];
          unpack(ld_constant<T, VEC>(weight + col), w);
          if constexpr (FORM == LAYER) unpack(ld_constant<T, VEC>(bias + col), b);
#pragma unroll
          for (int i = 0; i < VEC; ++i) {
            f[i] = (FORM == LAYER ? f[i] - shift : f[i]) * scale * w[i];
            if constexpr (FORM == LAYER) f[i] += b[i];
          }
        }
        st<STORE>(y + m * N + col, pack<T, VEC>(f));
      }
    }
  }
}
)";

class RowFamily : public CudaSpaceFamily {
 public:
  RowFamily(Form form, const std::string& op)
      : CudaSpaceFamily(op + ".rows", op,
                        {{"vec", {8, 4, 2, 1}},
                         {"threads", {256, 128, 512, 64, 32, 1024}},
                         {"rows", {1, 2, 4, 8}},
                         {"persist", {0, 1, 2, 4, 8}},
                         {"ahead", {0, 1}},
                         {"keep", {0, 1}},
                         {"load", {0, 1, 2}},
                         {"store", {0, 1}}}),
        form_(form) {}

  CudaKernelSource schedule(const Definition& d, const CudaTarget& t, const Point& point) const override {
    const View v(*this, point);
    CudaKernelSource s;
    CudaSource text;
    text.type("T", element(d))
        .let("N", d.const_extents()[1])
        .let("VEC", v["vec"])
        .let("THREADS", v["threads"])
        .let("ROWS", v["rows"])
        .let("AHEAD", v["ahead"])
        .let("KEEP", v["keep"])
        .let("LOAD", v["load"])
        .let("STORE", v["store"])
        .let("FORM", static_cast<int>(form_))
        .let_float("EPS", form_ == Form::kSoftmax ? 0.0 : d.attr("eps"))
        .body(kBody);
    s.text = text.take();
    dispatch::CudaPhase p;
    p.symbol = "run";
    p.factors = {{0, v["rows"]}};
    p.threads = v["threads"] * v["rows"];
    p.blocks_per_sm = v["persist"];
    s.plan.phases = {p};
    s.limits = any_problem(d, v["vec"] * element_bytes(d));
    s.kernel_name = kernel_name(d, t, point);
    return s;
  }

 protected:
  bool allowed(const Definition& d, const CudaTarget& t, const View& v) const override {
    const int64_t n = d.const_extents()[1];
    const int bytes = v["vec"] * element_bytes(d), block = v["threads"] * v["rows"];
    if (bytes > 16 || n % v["vec"] != 0 || block > 1024 || block < 64) return false;
    const int64_t step = int64_t{v["vec"]} * v["threads"], chunks = (n + step - 1) / step;
    // Idle threads beyond half a row, and more packed words than registers can hold.
    if (v["threads"] > 32 && n * 2 <= step) return false;
    const int64_t words =
        chunks * ((bytes + 3) / 4) * (form_ == Form::kAdd || form_ == Form::kAddInPlace ? 2 : 1);
    if (words * (v["ahead"] + 1) > (block > 512 ? 32 : 64)) return false;
    if (v["ahead"] && v["persist"] == 0) return false;
    if (v["persist"] * block > t.threads_per_sm) return false;
    if (chunks == 1 && v["keep"] && v["vec"] < 4) return false;
    return bytes == 16 || (v["load"] == 0 && v["store"] == 0);
  }

  std::vector<Settings> seed_points(const Definition& d, const CudaTarget&) const override {
    std::vector<Settings> s;
    for (int vec : {16 / element_bytes(d), 4, 2, 1}) {
      for (int threads : {256, 128, 512, 64, 32, 1024}) {
        const int rows = threads == 32 ? 4 : threads == 64 ? 2 : 1;
        s.push_back({{"vec", vec}, {"threads", threads}, {"rows", rows}, {"keep", 1}});
        s.push_back({{"vec", vec}, {"threads", threads}, {"rows", rows}});
      }
      s.push_back({{"vec", vec}, {"threads", 128}, {"rows", 2}, {"keep", 1}});
      s.push_back({{"vec", vec}, {"threads", 128}, {"rows", 4}, {"persist", 2}, {"ahead", 1}, {"keep", 1}});
      s.push_back({{"vec", vec}, {"threads", 256}, {"persist", 4}, {"ahead", 1}, {"keep", 1}});
    }
    return s;
  }

 private:
  Form form_;
};

}  // namespace

void add_row_families(evolve::CudaFamilyRegistry& registry) {
  registry.add(std::make_shared<RowFamily>(Form::kRms, "rms_norm"));
  registry.add(std::make_shared<RowFamily>(Form::kAdd, "fused_add_rms_norm"));
  registry.add(std::make_shared<RowFamily>(Form::kAddInPlace, "fused_add_rms_norm_inplace"));
  registry.add(std::make_shared<RowFamily>(Form::kLayer, "layer_norm"));
  registry.add(std::make_shared<RowFamily>(Form::kSoftmax, "softmax"));
}

}  // namespace niche::ops_cuda
