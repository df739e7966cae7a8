#include "examples/ranker/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/TensorOperators.h>

namespace ranker {
namespace {

// splitmix64 as a counter-based stream: the same request id gives the same features in server and checker.
struct Stream {
  uint64_t state;
  uint64_t next() {
    uint64_t x = (state += 0x9e3779b97f4a7c15ULL);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
};

// Offsets of the bags of kBatchMax candidates: 40 bags of 5 ids, then 8 bags of 8 dense features, a candidate.
at::Tensor offsets_of_bags() {
  at::Tensor offsets = at::empty({kBatchMax * kBags}, at::kLong);
  auto* o = offsets.data_ptr<int64_t>();
  int64_t at = 0;
  for (int64_t b = 0; b < kBatchMax; ++b) {
    for (int64_t i = 0; i < kIdBags; ++i, at += kIdsPerCandidate / kIdBags) *o++ = at;
    for (int64_t i = 0; i < kDenseBags; ++i, at += kDense / kDenseBags) *o++ = at;
  }
  return offsets;
}

at::Tensor events_by_length() {
  at::Tensor events = at::zeros({kLengthMax + 1, kEventTokens}, at::kLong);
  for (int64_t length = 2; length <= kLengthMax; ++length) events[length].copy_(event_positions(length));
  return events;
}

class ReferenceOps final : public Ops {
 public:
  explicit ReferenceOps(const Weights& w) : w_(w) {}

  at::Tensor map_id(const at::Tensor& values) override {
    const at::Tensor i = at::bucketize(values, w_.id_table).clamp_max(kTableIds - 1);
    return at::where(w_.id_table.index_select(0, i) == values, i + 1, at::zeros_like(i));
  }
  at::Tensor mbdt(const at::Tensor& dense) override {
    at::Tensor out = at::empty(dense.sizes(), at::kLong);
    // Borders and features are compared in fp32, as the model was trained: a bin is a decision, not a number.
    const at::Tensor b = w_.borders.to(at::kFloat);
    for (int64_t f = 0; f < kDense; ++f)
      out[f].copy_(at::bucketize(dense[f].to(at::kFloat).contiguous(), b[f].contiguous()) +
                   f * (kBorders + 1));
    return out;
  }
  at::Tensor embedding_bag(const at::Tensor& indices, const at::Tensor& offsets) override {
    return std::get<0>(at::embedding_bag(w_.embedding, indices, offsets));
  }
  at::Tensor conv1d(int layer, const at::Tensor& x) override {
    const auto l = static_cast<size_t>(layer);
    return at::conv1d(x, w_.conv_w[l], w_.conv_b[l], 1, 1);
  }
  at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) override { return at::silu(gate) * up; }
  std::pair<at::Tensor, at::Tensor> add_norm(int norm, const at::Tensor& x,
                                             const at::Tensor& residual) override {
    const at::Tensor sum = x + residual;
    return {norm_of(sum) * (norm == 0 ? w_.event_norm : w_.token_norm[static_cast<size_t>(norm - 1)]), sum};
  }
  at::Tensor layer_norm(const at::Tensor& x) override {
    return at::layer_norm(x, {kChannels}, w_.ln_w, w_.ln_b, 1e-5);
  }
  at::Tensor pffn(int layer, const at::Tensor& x, const at::Tensor& w1, const at::Tensor& w2) override {
    const auto l = static_cast<size_t>(layer);
    const at::Tensor h = norm_of(at::gelu(at::bmm(x, w1) + w_.pffn_b1[l]));
    return norm_of(at::bmm(h, w2) + w_.pffn_b2[l]);
  }
  at::Tensor optimized_fm(const at::Tensor& x, const at::Tensor& y) override {
    return at::bmm(x, at::bmm(x.transpose(1, 2), y));
  }
  at::Tensor rms_norm(const at::Tensor& x) override { return norm_of(x) * w_.fm_norm; }
  at::Tensor softmax(const at::Tensor& x) override { return at::softmax(x, -1); }

 private:
  static at::Tensor norm_of(const at::Tensor& x) { return x * at::rsqrt(x.pow(2).mean(-1, true) + kEps); }
  const Weights& w_;
};

}  // namespace

Weights Weights::make(uint64_t seed) {
  auto gen = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto normal = [&](at::IntArrayRef sizes, double scale, double mean = 0) {
    return at::normal(mean, scale, sizes, gen);
  };
  Weights w;
  at::Tensor steps = at::randint(1, 4, {kTableIds}, gen, at::TensorOptions().dtype(at::kLong));
  w.id_table = at::cumsum(steps, 0);
  w.borders = std::get<0>(at::sort(normal({kDense, kBorders}, 1.0), 1)).contiguous();
  w.embedding = normal({kTableIds + 1 + kDense * (kBorders + 1), kChannels}, 0.1);
  for (size_t i = 0; i < 4; ++i) {
    w.conv_w[i] = normal({kChannels, kChannels, 3}, 0.047870, -0.000024);
    w.conv_b[i] = normal({kChannels}, 0.033662, -0.003198);
  }
  w.event_norm = normal({kChannels}, 0.1, 1.0);
  w.ln_w = normal({kChannels}, 0.1, 1.0);
  w.ln_b = normal({kChannels}, 0.1);
  for (size_t i = 0; i < 2; ++i) {
    w.token_norm[i] = normal({kChannels}, 0.1, 1.0);
    w.pffn_b1[i] = normal({kHidden}, 0.02);
    w.pffn_b2[i] = normal({kChannels}, 0.02);
    w.pffn_w1[i] = normal({kClusters, kChannels, kHidden}, 0.1);
    w.pffn_w2[i] = normal({kClusters, kHidden, kChannels}, 0.07);
  }
  w.fm_norm = normal({kFmCols}, 0.1, 1.0);
  w.head_w = normal({1, kChannels + kFmRows}, 0.1);
  w.head_b = normal({1}, 0.1);
  w.history = normal({kUsers, kChannels, kLengthMax}, 0.5);
  w.items = normal({kItems, kChannels}, 0.5);
  w.fm_x = normal({kItems, kFmRows, kFmInner}, 0.2);
  w.fm_y = normal({kItems, kFmRows, kFmCols}, 0.2);
  w.bag_offsets = offsets_of_bags();
  w.events = events_by_length();
  return w;
}

Weights Weights::to_double() const {
  Weights d = *this;  // tensors are shared until replaced; integers stay
  const auto up = [](at::Tensor& t) { t = t.to(at::kDouble); };
  for (at::Tensor* t : {&d.borders, &d.embedding, &d.event_norm, &d.ln_w, &d.ln_b, &d.fm_norm, &d.head_w,
                        &d.head_b, &d.history, &d.items, &d.fm_x, &d.fm_y})
    up(*t);
  for (auto* group : {&d.conv_w, &d.conv_b})
    for (at::Tensor& t : *group) up(t);
  for (auto* group : {&d.token_norm, &d.pffn_b1, &d.pffn_b2, &d.pffn_w1, &d.pffn_w2})
    for (at::Tensor& t : *group) up(t);
  return d;
}

Weights Weights::to(at::Device device) const {
  Weights d = *this;
  const auto move = [device](at::Tensor& t) { t = t.to(device); };
  for (at::Tensor* t :
       {&d.id_table, &d.borders, &d.embedding, &d.event_norm, &d.ln_w, &d.ln_b, &d.fm_norm, &d.head_w,
        &d.head_b, &d.history, &d.items, &d.fm_x, &d.fm_y, &d.bag_offsets, &d.events})
    move(*t);
  for (auto* group : {&d.conv_w, &d.conv_b})
    for (at::Tensor& t : *group) move(t);
  for (auto* group : {&d.token_norm, &d.pffn_b1, &d.pffn_b2, &d.pffn_w1, &d.pffn_w2})
    for (at::Tensor& t : *group) move(t);
  return d;
}

Features Features::make(uint64_t id, int64_t batch, int64_t length) {
  Stream s{id * 0xd1342543de82ef95ULL + 1};
  Features f;
  f.batch = batch;
  f.length = length;
  f.user = static_cast<int64_t>(s.next() % kUsers);
  f.ids = at::empty({batch * kIdsPerCandidate}, at::kLong);
  // The table's ids step by 2 on average: about half of the values are known.
  auto* ids = f.ids.data_ptr<int64_t>();
  for (int64_t i = 0; i < batch * kIdsPerCandidate; ++i)
    ids[i] = static_cast<int64_t>(s.next() % (kTableIds * 2));
  f.dense = at::empty({kDense, batch}, at::kFloat);
  auto* dense = f.dense.data_ptr<float>();
  // Sum of three uniforms: close enough to normal, and no libm call a value.
  for (int64_t i = 0; i < kDense * batch; ++i)
    dense[i] = static_cast<float>((s.uniform() + s.uniform() + s.uniform() - 1.5) * 2);
  f.item = at::empty({batch}, at::kLong);
  f.cluster = at::empty({batch}, at::kLong);
  for (int64_t b = 0; b < batch; ++b) {
    f.item.data_ptr<int64_t>()[b] = static_cast<int64_t>(s.next() % kItems);
    f.cluster.data_ptr<int64_t>()[b] = static_cast<int64_t>(s.next() % kClusters);
  }
  return f;
}

Features Features::to(at::Device device) const {
  // Whole words: `dense` has an even number of values, and first it leaves `ids` well aligned.
  const at::Tensor all =
      at::cat({dense.view({-1}).view(at::kLong), ids, item, cluster}).to(device, at::kLong, true);
  Features f = *this;
  int64_t at = 0;
  const auto take = [&](int64_t n) {
    at += n;
    return all.slice(0, at - n, at);
  };
  f.dense = take(dense.numel() / 2).view(at::kFloat).view(dense.sizes());
  f.ids = take(ids.numel());
  f.item = take(batch);
  f.cluster = take(batch);
  return f;
}

at::Tensor event_positions(int64_t length) {
  at::Tensor p = at::empty({kEventTokens}, at::kLong);
  auto* v = p.data_ptr<int64_t>();
  for (int64_t i = 0; i < kEventTokens; ++i)
    v[i] = (i * (length - 1) + (kEventTokens - 1) / 2) / (kEventTokens - 1);
  return p;
}

Ranking rank(const Weights& w, Ops& ops, const Features& f) {
  const int64_t b = f.batch;
  // Sparse and dense features to bags of embeddings.
  const at::Tensor ids = ops.map_id(f.ids).view({b, kIdsPerCandidate});
  const at::Tensor bins = ops.mbdt(f.dense).t() + (kTableIds + 1);
  const at::Tensor bags =
      ops.embedding_bag(at::cat({ids, bins}, 1).view({-1}), w.bag_offsets.slice(0, 0, b * kBags));

  // The history, conditioned on the candidate, through two gated blocks.
  at::Tensor x = w.history[f.user].slice(1, 0, f.length) + w.items.index_select(0, f.item).unsqueeze(2);
  at::Tensor gated;
  for (int block = 0; block < 2; ++block) {
    if (block > 0) x = x + gated;
    const at::Tensor up = ops.conv1d(2 * block, x), gate = ops.conv1d(2 * block + 1, x);
    gated = ops.silu_mul(gate.view({-1, kChannels}), up.view({-1, kChannels})).view_as(up);
  }
  const at::Tensor at_events = w.events.select(0, f.length);
  const auto rows = [&](const at::Tensor& t) {
    return t.transpose(1, 2).index_select(1, at_events).view({-1, kChannels});
  };
  const at::Tensor events = ops.add_norm(0, rows(gated), rows(x)).first;

  // Tokens through two personalised feed-forward layers.
  at::Tensor residual =
      ops.layer_norm(at::cat({bags.view({b, kBags, kChannels}), events.view({b, kEventTokens, kChannels})}, 1)
                         .view({-1, kChannels}));
  at::Tensor normed = residual;
  for (int layer = 0; layer < 2; ++layer) {
    const auto l = static_cast<size_t>(layer);
    const at::Tensor y =
        ops.pffn(layer, normed.view({b, kTokens, kChannels}), w.pffn_w1[l].index_select(0, f.cluster),
                 w.pffn_w2[l].index_select(0, f.cluster));
    std::tie(normed, residual) = ops.add_norm(layer + 1, y.view({-1, kChannels}), residual);
  }
  const at::Tensor pooled = normed.view({b, kTokens, kChannels}).mean(1);

  // Factorisation machine, attended over its columns.
  const at::Tensor fm = ops.optimized_fm(w.fm_x.index_select(0, f.item), w.fm_y.index_select(0, f.item));
  const at::Tensor fm_rows = fm.view({-1, kFmCols});
  const at::Tensor attention = ops.softmax(ops.rms_norm(fm_rows));
  const at::Tensor attended = (attention * fm_rows).sum(-1).view({b, kFmRows});

  Ranking r;
  r.features = at::cat({pooled, attended}, 1);
  r.logits = at::linear(r.features, w.head_w, w.head_b).view({b});
  return r;
}

std::unique_ptr<Ops> make_reference_ops(const Weights& w) { return std::make_unique<ReferenceOps>(w); }

}  // namespace ranker
