// A recommender ranking model of niche's operators: what the example server serves.
//
// One request ranks B candidates for a user with a history of L events. The chain (sizes after a production
// ranker's):
//
//   map_id (200 ids a candidate, table of 10,000)      sparse ids to rows, unknown ids to row 0
//   mbdt (64 dense features, 8 borders each)           dense features to rows
//   embedding_bag (48 bags a candidate, D = 96)
//   history [B,96,L]: two gated blocks of conv1d, conv1d (96x96x3), silu_mul, add
//   102 events of it, fused_add_rms_norm -> with the bags: 150 tokens of 96, layer_norm
//   two pffn (150,96,192), each with fused_add_rms_norm
//   optimized_fm (40,224,448), rms_norm, softmax as attention over its columns
//   one linear head -> a logit a candidate
//
// The same code runs on niche (OpHandles), and in fp64 on ATen alone (the reference that checks live
// answers): operators come in through `Ops`.
//
// Thread-safety: Model and Weights are immutable; rank() may run in many threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

namespace ranker {

inline constexpr int64_t kChannels = 96, kTokens = 150, kHidden = 192, kEventTokens = 102;
inline constexpr int64_t kIdsPerCandidate = 200, kTableIds = 10'000, kDense = 64, kBorders = 8;
inline constexpr int64_t kIdBags = 40, kDenseBags = 8, kBags = kIdBags + kDenseBags;
inline constexpr int64_t kFmRows = 40, kFmInner = 224, kFmCols = 448;
inline constexpr int64_t kUsers = 16, kLengthMax = 512, kBatchMax = 64, kItems = 64, kClusters = 8;
inline constexpr double kEps = 1e-6;
inline constexpr uint64_t kWeightsSeed = 20231116;
inline constexpr uint64_t kSampleOneIn = 12;  // answers that carry their features, for the checker

// Everything constant: parameters and the feature store. fp32 as trained; to_double() for the reference.
struct Weights {
  at::Tensor id_table;                       // [10000] int64, sorted
  at::Tensor borders;                        // [64, 8], rows sorted
  at::Tensor embedding;                      // [10001 + 64 * 9, 96]
  std::array<at::Tensor, 4> conv_w, conv_b;  // block 0: value, gate; block 1: value, gate
  at::Tensor event_norm, ln_w, ln_b;
  std::array<at::Tensor, 2> token_norm;
  std::array<at::Tensor, 2> pffn_b1, pffn_b2;
  // Banks [8, 96, 192] and [8, 192, 96]: per-sample weights by cluster.
  std::array<at::Tensor, 2> pffn_w1, pffn_w2;
  at::Tensor fm_norm, head_w, head_b;
  at::Tensor history;     // [16, 96, 512]
  at::Tensor items;       // [64, 96]
  at::Tensor fm_x, fm_y;  // [64, 40, 224], [64, 40, 448]
  // Where things lie, for every size of request: nothing of it is computed, or sent to a device, in a request.
  at::Tensor bag_offsets;  // [64 * 48] int64: those of B candidates are the first B * 48
  at::Tensor events;       // [513, 102] int64: row L is event_positions(L)

  static Weights make(uint64_t seed);
  Weights to_double() const;
  Weights to(at::Device device) const;
};

// What a request asks for, resolved against the feature store.
struct Features {
  int64_t batch = 0, length = 0, user = 0;
  at::Tensor ids;      // [B * 200] int64, raw
  at::Tensor dense;    // [64, B] fp32
  at::Tensor item;     // [B] int64: rows of items, fm_x, fm_y
  at::Tensor cluster;  // [B] int64: rows of the pffn banks
  // Deterministic in `id`: the checker builds the same features again. Fresh values for every id.
  static Features make(uint64_t id, int64_t batch, int64_t length);
  // In one copy, on the thread's current stream there.
  Features to(at::Device device) const;
};

// The operators, as a model author sees them. Layers are numbered in the order of the chain above.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual at::Tensor map_id(const at::Tensor& values) = 0;
  virtual at::Tensor mbdt(const at::Tensor& dense) = 0;
  virtual at::Tensor embedding_bag(const at::Tensor& indices, const at::Tensor& offsets) = 0;
  virtual at::Tensor conv1d(int layer, const at::Tensor& x) = 0;
  virtual at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) = 0;
  // {normalised, x + residual}. Norm 0: events; 1, 2: tokens after each pffn.
  virtual std::pair<at::Tensor, at::Tensor> add_norm(int norm, const at::Tensor& x,
                                                     const at::Tensor& residual) = 0;
  virtual at::Tensor layer_norm(const at::Tensor& x) = 0;
  virtual at::Tensor pffn(int layer, const at::Tensor& x, const at::Tensor& w1, const at::Tensor& w2) = 0;
  virtual at::Tensor optimized_fm(const at::Tensor& x, const at::Tensor& y) = 0;
  virtual at::Tensor rms_norm(const at::Tensor& x) = 0;
  virtual at::Tensor softmax(const at::Tensor& x) = 0;
};

// Which 102 of `length` events become tokens: spread evenly, the newest always among them. [102] int64.
at::Tensor event_positions(int64_t length);

struct Ranking {
  at::Tensor logits;    // [B]
  at::Tensor features;  // [B, 136]: the head's input: 96 pooled token channels and 40 attended rows
};

// Requires: no grad mode. `w` and `ops` hold the same element type. Cost at B=1, L=200: about 1–2 ms on one
// core.
Ranking rank(const Weights& w, Ops& ops, const Features& f);

// fp64 on ATen's first-written forms. `w` is Weights::to_double().
std::unique_ptr<Ops> make_reference_ops(const Weights& w);

}  // namespace ranker
