// embedding_bag, map_id, mbdt: lookups by index and by search.
#include <ATen/ops/_embedding_bag_forward_only.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/le.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "runtime/ops/aten_op.h"
#include "runtime/ops/builtin_ops.h"
#include "runtime/ops/tolerances.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;
using enum ArgRole;
using enum AxisKind;

double axis(const Problem& p, int i) { return static_cast<double>(p.axes[static_cast<size_t>(i)]); }
double log2_ceil(double n) { return std::ceil(std::log2(std::max(2.0, n))); }

// --- embedding_bag: weight indices offsets y

namespace bag {
enum Axis { V, D, I, B };
enum Distribution { kUniform, kZipf, kEmptyBags, kOneBag, kSameRow, kWideRows };

int64_t mode(const Definition& d) { return d.attrs()[0] != 0 ? 1 : 0; }

// Ascending offsets, the first 0, as torch requires. `empty`: half of the bags hold nothing.
void fill_offsets(const DLTensor& offsets, int64_t total, int64_t bags, bool empty, Rng& rng) {
  int64_t* o = i64(offsets);
  o[0] = 0;
  for (int64_t b = 1; b < bags; ++b)
    o[b] = empty && (rng.next() & 1) ? (rng.next() & 1 ? total : 0) : rng.below(total + 1);
  std::sort(o, o + bags);
}

void fill_inputs(const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) {
  const int64_t rows = p.axes[V], total = p.axes[I], bags = p.axes[B];
  fill(args[0], distribution == kWideRows ? Shape::kWide : Shape::kModel, rng, 1, 0, 0.05);
  int64_t* index = i64(args[1]);
  const int64_t one = rng.below(rows);
  for (int64_t i = 0; i < total; ++i) {
    if (distribution == kZipf)  // a few rows take most lookups
      index[i] =
          std::min(rows - 1, static_cast<int64_t>(std::pow(static_cast<double>(rows), rng.uniform())) - 1);
    else
      index[i] = distribution == kSameRow ? one : rng.below(rows);
  }
  if (distribution == kOneBag) {
    std::fill(i64(args[2]), i64(args[2]) + bags, total);
    i64(args[2])[0] = 0;
  } else {
    fill_offsets(args[2], total, bags, distribution == kEmptyBags, rng);
  }
}

AtenOp::Table table() {
  AtenOp::Table t;
  t.schema = {"embedding_bag",
              {{"V", kConst}, {"D", kConst}, {"I", kVar}, {"B", kVar}},
              {{"weight", kIn, "T", {V, D}, false, true},
               {"indices", kIn, "i64", {I}},
               {"offsets", kIn, "i64", {B}},
               {"y", kOut, "T", {B, D}}},
              {{"mean", 0, 0, 1, true}},
              {"f32", "f16", "bf16"}};
  t.may_be_empty = {"I"};
  t.flops = [](const Problem& p) { return axis(p, I) * axis(p, D); };
  // At most one read a row of the table that is looked up.
  t.bytes = [](const Problem& p) {
    const double row = axis(p, D) * static_cast<double>(dtype_bytes(p.definition->dtype()));
    return row * (std::min(axis(p, I), axis(p, V)) + axis(p, B)) + 8 * (axis(p, I) + axis(p, B));
  };
  t.tolerance = [](const Definition& d) {
    return float_tolerance(d, 2, 0,
                           "fp32: twice the library's error; a bag's rows may be summed in any order");
  };
  t.distributions = {"uniform", "zipf", "empty bags", "all in one bag", "one row", "wide magnitudes"};
  t.fill = fill_inputs;
  t.reference = [](const Definition& d, at::Tensor* t) {
    const double* weight = t[0].const_data_ptr<double>();
    const int64_t* index = t[1].const_data_ptr<int64_t>();
    const int64_t* offset = t[2].const_data_ptr<int64_t>();
    double* y = t[3].mutable_data_ptr<double>();
    const int64_t width = t[0].size(1), total = t[1].numel(), bags = t[2].numel();
    for (int64_t b = 0; b < bags; ++b) {
      const int64_t begin = offset[b], end = b + 1 < bags ? offset[b + 1] : total;
      for (int64_t i = begin; i < end; ++i)
        for (int64_t c = 0; c < width; ++c) y[b * width + c] += weight[index[i] * width + c];
      if (mode(d) == 1 && end > begin)
        for (int64_t c = 0; c < width; ++c) y[b * width + c] /= static_cast<double>(end - begin);
    }
  };
  t.forms = {{"embedding_bag",
              [](const Definition& d, at::Tensor* t) {
                put(t[3], std::get<0>(at::embedding_bag(t[0], t[1], t[2], false, mode(d))));
              }},
             {"_embedding_bag_forward_only", [](const Definition& d, at::Tensor* t) {
                put(t[3], std::get<0>(at::_embedding_bag_forward_only(t[0], t[1], t[2], false, mode(d))));
              }}};
  return t;
}
}  // namespace bag

// --- map_id: values table index

namespace map_id {
enum Axis { V, T };
enum Distribution { kMostlyKnown, kMissing, kBorders, kOutside, kOneValue, kSorted };

// Strictly ascending ids. Distribution kBorders uses the whole range of int64, so that differences overflow.
void fill_table(const DLTensor& table, int64_t n, bool whole_range, Rng& rng) {
  int64_t* id = i64(table);
  if (whole_range) {
    const uint64_t step = std::numeric_limits<uint64_t>::max() / static_cast<uint64_t>(n);
    for (int64_t i = 0; i < n; ++i)
      id[i] = static_cast<int64_t>(static_cast<uint64_t>(i) * step +
                                   static_cast<uint64_t>(rng.below(static_cast<int64_t>(step / 2))) +
                                   0x8000000000000000ULL);
    return;
  }
  int64_t last = rng.below(1000);
  for (int64_t i = 0; i < n; ++i) id[i] = last += 1 + rng.below(1000);
}

void fill_inputs(const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) {
  const int64_t n = p.axes[V], ids = p.axes[T];
  fill_table(args[1], ids, distribution == kBorders, rng);
  const int64_t* id = i64(args[1]);
  int64_t* v = i64(args[0]);
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  const int64_t one = id[rng.below(ids)];
  for (int64_t i = 0; i < n; ++i) {
    const int64_t known = id[rng.below(ids)];
    switch (distribution) {
      case kMostlyKnown:
        v[i] = rng.below(10) ? known : known + 1;
        break;
      case kMissing:
        v[i] = rng.below(id[ids - 1] - id[0] + 1) + id[0];
        break;
      case kBorders: {  // ends of the table and of int64, and their neighbours
        const std::array<int64_t, 8> pick{kMin,
                                          kMax,
                                          id[0],
                                          id[ids - 1],
                                          known,
                                          known == kMax ? known : known + 1,
                                          id[0] == kMin ? kMin : id[0] - 1,
                                          0};
        v[i] = pick[rng.next() & 7];
        break;
      }
      case kOutside:
        v[i] = rng.next() & 1 ? id[0] - 1 - rng.below(1000) : id[ids - 1] + 1 + rng.below(1000);
        break;
      case kOneValue:
        v[i] = one;
        break;
      default:
        v[i] = known;
        break;
    }
  }
  if (distribution == kSorted) std::sort(v, v + n);
}

// The table is gathered at each found position: 1 + position where the id is there, else 0.
void finish_where(at::Tensor* t, const at::Tensor& position) {
  const at::Tensor hit = at::eq(at::index_select(t[1], 0, position), t[0]);
  put(t[2], at::where(hit, position + 1, 0));
}

AtenOp::Table table() {
  AtenOp::Table t;
  t.schema = {
      "map_id",
      {{"V", kVar}, {"T", kConst}},
      {{"values", kIn, "i64", {V}}, {"table", kIn, "i64", {T}, false, true}, {"index", kOut, "i64", {V}}},
      {},
      {"i64"}};
  t.flops = [](const Problem& p) { return axis(p, V) * log2_ceil(axis(p, T)); };
  t.tolerance = [](const Definition&) { return exact_tolerance(); };
  t.distributions = {"mostly known", "mostly missing", "borders of table and int64",
                     "outside",      "one value",      "sorted"};
  t.fill = fill_inputs;
  t.reference = [](const Definition&, at::Tensor* t) {
    const int64_t* v = t[0].const_data_ptr<int64_t>();
    const int64_t* id = t[1].const_data_ptr<int64_t>();
    int64_t* index = t[2].mutable_data_ptr<int64_t>();
    const int64_t ids = t[1].numel();
    for (int64_t i = 0; i < t[0].numel(); ++i) {
      const int64_t* at = std::lower_bound(id, id + ids, v[i]);
      index[i] = at != id + ids && *at == v[i] ? at - id + 1 : 0;
    }
  };
  t.forms = {{"bucketize,clamp,where",
              [](const Definition&, at::Tensor* t) {
                finish_where(t, at::bucketize(t[0], t[1]).clamp_max_(t[1].numel() - 1));
              }},
             {"bucketize int32,where",
              [](const Definition&, at::Tensor* t) {
                const at::Tensor position = at::bucketize(t[0], t[1], true).clamp_max_(t[1].numel() - 1);
                const at::Tensor hit = at::eq(at::index_select(t[1], 0, position), t[0]);
                put(t[2], at::where(hit, position + 1, 0).to(at::kLong));
              }},
             {"searchsorted,mul_", [](const Definition&, at::Tensor* t) {
                at::Tensor position =
                    t[2].defined() ? at::searchsorted_out(t[2], t[1], t[0]) : at::searchsorted(t[1], t[0]);
                position.clamp_max_(t[1].numel() - 1);
                const at::Tensor hit = at::index_select(t[1], 0, position).eq(t[0]);
                position.add_(1).mul_(hit);
                t[2] = std::move(position);
              }}};
  return t;
}
}  // namespace map_id

// --- mbdt: X borders bin

namespace mbdt {
enum Axis { F, K, B };
enum Distribution { kModel, kOnBorders, kNotFinite, kEqualBorders, kDenormal, kInfiniteBorders };

void fill_inputs(const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) {
  const int64_t features = p.axes[F], borders = p.axes[K], batch = p.axes[B];
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  const double scale = distribution == kDenormal ? 1e-41 : 1;
  fill(args[1], distribution == kEqualBorders ? Shape::kTies : Shape::kModel, rng, scale, 0, scale);
  float* border = f32(args[1]);
  for (int64_t f = 0; f < features; ++f) {
    float* row = border + f * borders;
    std::sort(row, row + borders);
    if (distribution == kInfiniteBorders) {
      row[0] = -kInf;
      row[borders - 1] = kInf;
    }
  }
  fill(args[0], Shape::kModel, rng, scale, 0, scale);
  float* x = f32(args[0]);
  for (int64_t i = 0; i < features * batch; ++i) {
    const float edge = border[i / batch * borders + rng.below(borders)];
    const uint64_t pick = rng.next() & 7;
    if (distribution == kOnBorders || distribution == kEqualBorders)
      x[i] = pick < 4 ? edge : pick < 6 ? std::nextafter(edge, kInf) : std::nextafter(edge, -kInf);
    else if (distribution == kNotFinite || distribution == kInfiniteBorders)
      x[i] = pick == 0   ? kNan
             : pick == 1 ? kInf
             : pick == 2 ? -kInf
             : pick == 3 ? -0.0f
             : pick == 4 ? edge
                         : x[i];
  }
}

// Adds f * (K + 1) to row f.
at::Tensor offsets(const at::Tensor* t) {
  const int64_t step = t[1].size(1) + 1;
  return at::arange(0, t[1].size(0) * step, step, t[0].options().dtype(at::kLong)).unsqueeze(1);
}

// NaN compares false with every border, and !(x <= border) counts it as above all: the last bin, as bucketize
// does.
void run_compare_sum(const Definition&, at::Tensor* t) {
  const at::Tensor above = at::le(t[0].unsqueeze(0), t[1].t().unsqueeze(2)).logical_not_();  // (K, F, B)
  if (t[2].defined())
    at::sum_out(t[2], above, {0});
  else
    t[2] = at::sum(above, {0});
  t[2].add_(offsets(t));
}

AtenOp::Table table() {
  AtenOp::Table t;
  t.schema = {
      "mbdt",
      {{"F", kConst}, {"K", kConst}, {"B", kVar}},
      {{"X", kIn, "f32", {F, B}}, {"borders", kIn, "f32", {F, K}, false, true}, {"bin", kOut, "i64", {F, B}}},
      {},
      {"f32"}};
  t.flops = [](const Problem& p) {
    return axis(p, F) * axis(p, B) * std::min(axis(p, K), log2_ceil(axis(p, K) + 1));
  };
  t.tolerance = [](const Definition&) { return exact_tolerance(); };
  t.distributions = {"model",         "on borders", "NaN and infinities",
                     "equal borders", "denormal",   "infinite borders"};
  t.fill = fill_inputs;
  t.reference = [](const Definition&, at::Tensor* t) {
    const double* x = t[0].const_data_ptr<double>();
    const double* border = t[1].const_data_ptr<double>();
    int64_t* bin = t[2].mutable_data_ptr<int64_t>();
    const int64_t features = t[0].size(0), batch = t[0].size(1), borders = t[1].size(1);
    for (int64_t f = 0; f < features; ++f)
      for (int64_t i = 0; i < batch; ++i) {
        int64_t count = 0;
        for (int64_t k = 0; k < borders; ++k) count += !(x[f * batch + i] <= border[f * borders + k]);
        bin[f * batch + i] = count + f * (borders + 1);
      }
  };
  t.forms = {{"bucketize a feature",
              [](const Definition&, at::Tensor* t) {
                if (!t[2].defined()) t[2] = at::empty(t[0].sizes(), t[0].options().dtype(at::kLong));
                for (int64_t f = 0; f < t[0].size(0); ++f) {
                  at::Tensor bin = t[2].select(0, f);
                  at::bucketize_out(bin, t[0].select(0, f), t[1].select(0, f));
                  bin.add_(f * (t[1].size(1) + 1));
                }
              }},
             {"searchsorted,add_",
              [](const Definition&, at::Tensor* t) {
                if (t[2].defined())
                  at::searchsorted_out(t[2], t[1], t[0]);
                else
                  t[2] = at::searchsorted(t[1], t[0]);
                t[2].add_(offsets(t));
              }},
             {"compare,sum", run_compare_sum}};
  return t;
}
}  // namespace mbdt

}  // namespace

void add_lookup_ops(OpList& ops) {
  ops.push_back(std::make_shared<AtenOp>(bag::table()));
  ops.push_back(std::make_shared<AtenOp>(map_id::table()));
  ops.push_back(std::make_shared<AtenOp>(mbdt::table()));
}

}  // namespace niche::ops
