// batch_event_truncate: the first N events of each user, over features whose events hold jagged values.
//
// How the data-dependent size is handled: outputs are as large as the inputs and compact from their start;
// `sizes` says how many events and values of each feature were kept, written_elements reads it, and what
// follows may hold anything. Nothing is synchronised or reallocated for a size.
#include <ATen/ops/arange.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sum.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

#include "runtime/ops/aten_op.h"
#include "runtime/ops/builtin_ops.h"
#include "runtime/ops/tolerances.h"

namespace niche::ops {
namespace {

using namespace niche::dispatch;
using enum ArgRole;
using enum AxisKind;

enum Axis { F, U, E, W, F2 };
enum Arg { kOuter, kInner, kValues, kOuterOut, kInnerOut, kValuesOut, kSizes };
enum Distribution { kModelUsers, kNothingCut, kOneUser, kEmptyUsers, kLastFeature, kHeavyEvents };

int64_t max_events(const Definition& d) { return static_cast<int64_t>(d.attrs()[0]); }

// --- library forms: each truncates one jagged list, either a feature or all features as one long list of
// users

at::Tensor starts_of(const at::Tensor& lengths) { return at::cumsum(lengths, 0).sub_(lengths); }
int64_t total_of(const at::Tensor& lengths) { return at::sum(lengths).item<int64_t>(); }

// For segments at `from` in a source: the source index of each of the first `lengths` elements, segment by
// segment.
at::Tensor segment_index(const at::Tensor& from, const at::Tensor& lengths, int64_t total) {
  const at::Tensor shift = from - starts_of(lengths);
  return at::repeat_interleave(shift, lengths, 0, total).add_(at::arange(total, lengths.options()));
}

struct Kept {
  int64_t events, values;
};

// Writes the kept events' lengths and values to the start of the given memory.
Kept truncate_by_index(const at::Tensor& outer, const at::Tensor& kept, const at::Tensor& inner,
                       const at::Tensor& values, const at::Tensor& inner_out, const at::Tensor& values_out) {
  const int64_t events = total_of(kept);
  const at::Tensor event = segment_index(starts_of(outer), kept, events);
  at::Tensor lengths = inner_out.narrow(0, 0, events);
  at::index_select_out(lengths, inner, 0, event);
  const int64_t count = total_of(lengths);
  at::Tensor out = values_out.narrow(0, 0, count);
  at::index_select_out(out, values, 0,
                       segment_index(at::index_select(starts_of(inner), 0, event), lengths, count));
  return {events, count};
}

Kept truncate_by_mask(const at::Tensor& outer, const at::Tensor& kept, const at::Tensor& inner,
                      const at::Tensor& values, const at::Tensor& inner_out, const at::Tensor& values_out) {
  const int64_t all = inner.numel(), events = total_of(kept);
  // An event's place within its user against how many of that user are kept.
  const at::Tensor place =
      at::arange(all, outer.options()).sub_(at::repeat_interleave(starts_of(outer), outer, 0, all));
  const at::Tensor keep = at::lt(place, at::repeat_interleave(kept, outer, 0, all));
  at::Tensor lengths = inner_out.narrow(0, 0, events);
  at::masked_select_out(lengths, inner, keep);
  const int64_t count = total_of(lengths);
  at::Tensor out = values_out.narrow(0, 0, count);
  at::masked_select_out(out, values, at::repeat_interleave(keep, inner, 0, values.numel()));
  return {events, count};
}

using Truncate = Kept (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                          const at::Tensor&, const at::Tensor&);

void allocate(at::Tensor* t) {
  for (int i : {kInnerOut, kValuesOut})
    if (!t[i].defined()) t[i] = at::empty(t[i == kInnerOut ? kInner : kValues].sizes(), t[kValues].options());
  if (!t[kSizes].defined()) t[kSizes] = at::empty({2 * t[kOuter].size(0)}, t[kOuter].options());
}

template <Truncate kTruncate>
void run_by_feature(const Definition& d, at::Tensor* t) {
  allocate(t);
  put(t[kOuterOut], at::clamp_max(t[kOuter], max_events(d)));
  int64_t* sizes = t[kSizes].mutable_data_ptr<int64_t>();
  int64_t event = 0, value = 0, event_out = 0, value_out = 0;
  for (int64_t f = 0; f < t[kOuter].size(0); ++f) {
    const at::Tensor outer = t[kOuter].select(0, f);
    const int64_t events = total_of(outer);
    const at::Tensor inner = t[kInner].narrow(0, event, events);
    const int64_t count = total_of(inner);
    const Kept kept = kTruncate(outer, t[kOuterOut].select(0, f), inner, t[kValues].narrow(0, value, count),
                                t[kInnerOut].slice(0, event_out), t[kValuesOut].slice(0, value_out));
    sizes[2 * f] = kept.events;
    sizes[2 * f + 1] = kept.values;
    event += events;
    value += count;
    event_out += kept.events;
    value_out += kept.values;
  }
}

// All features as one list of F * U users; only the sizes are taken feature by feature.
template <Truncate kTruncate>
void run_at_once(const Definition& d, at::Tensor* t) {
  allocate(t);
  put(t[kOuterOut], at::clamp_max(t[kOuter], max_events(d)));
  kTruncate(t[kOuter].flatten(), t[kOuterOut].flatten(), t[kInner], t[kValues], t[kInnerOut], t[kValuesOut]);
  const at::Tensor events = at::sum(t[kOuterOut], at::IntArrayRef{1});
  int64_t* sizes = t[kSizes].mutable_data_ptr<int64_t>();
  int64_t begin = 0;
  for (int64_t f = 0; f < events.numel(); ++f) {
    sizes[2 * f] = events.const_data_ptr<int64_t>()[f];
    sizes[2 * f + 1] = total_of(t[kInnerOut].narrow(0, begin, sizes[2 * f]));
    begin += sizes[2 * f];
  }
}

// --- reference, inputs

void reference(const Definition& d, at::Tensor* t) {
  const int64_t *outer = t[kOuter].const_data_ptr<int64_t>(), *inner = t[kInner].const_data_ptr<int64_t>(),
                *values = t[kValues].const_data_ptr<int64_t>();
  int64_t *outer_out = t[kOuterOut].mutable_data_ptr<int64_t>(),
          *inner_out = t[kInnerOut].mutable_data_ptr<int64_t>(),
          *values_out = t[kValuesOut].mutable_data_ptr<int64_t>(),
          *sizes = t[kSizes].mutable_data_ptr<int64_t>();
  const int64_t users = t[kOuter].size(1);
  for (int64_t row = 0; row < t[kOuter].numel(); ++row) {
    outer_out[row] = std::min(outer[row], max_events(d));
    for (int64_t e = 0; e < outer[row]; ++e, ++inner) {
      if (e < outer_out[row]) {
        *inner_out++ = *inner;
        values_out = std::copy(values, values + *inner, values_out);
        ++sizes[2 * (row / users)];
        sizes[2 * (row / users) + 1] += *inner;
      }
      values += *inner;
    }
  }
}

// Splits `total` over `parts`: by random cuts (lengths spread exponentially), or each unit to a random part.
void split_by_cuts(int64_t* parts, int64_t count, int64_t total, Rng& rng) {
  for (int64_t i = 0; i + 1 < count; ++i) parts[i] = rng.below(total + 1);
  std::sort(parts, parts + count - 1);
  parts[count - 1] = total;
  for (int64_t i = count - 1; i > 0; --i) parts[i] -= parts[i - 1];
}
void split_by_unit(int64_t* parts, int64_t count, int64_t total, Rng& rng) {
  std::fill(parts, parts + count, 0);
  for (int64_t i = 0; i < total; ++i) ++parts[rng.below(count)];
}
void split_evenly(int64_t* parts, int64_t count, int64_t total) {
  for (int64_t i = 0; i < count; ++i) parts[i] = (i + 1) * total / count - i * total / count;
}

void fill_inputs(const Problem& p, int distribution, Rng& rng, std::span<const DLTensor> args) {
  const int64_t rows = p.axes[F] * p.axes[U], events = p.axes[E], values = p.axes[W];
  int64_t *outer = i64(args[kOuter]), *inner = i64(args[kInner]), *value = i64(args[kValues]);
  switch (distribution) {
    case kNothingCut:
      split_evenly(outer, rows, events);
      break;  // where E / (F U) is at most the limit
    case kOneUser:
      std::fill(outer, outer + rows, 0);
      outer[rng.below(rows)] = events;
      break;
    case kEmptyUsers:  // three of four users have no event
      split_by_cuts(outer, (rows + 3) / 4, events, rng);
      std::fill(outer + (rows + 3) / 4, outer + rows, 0);
      for (int64_t i = rows - 1; i > 0; --i) std::swap(outer[i], outer[rng.below(i + 1)]);
      break;
    case kLastFeature:
      std::fill(outer, outer + rows, 0);
      split_by_cuts(outer + rows - p.axes[U], p.axes[U], events, rng);
      break;
    default:
      split_by_cuts(outer, rows, events, rng);
  }
  if (events > 0 && distribution == kHeavyEvents) {  // nearly every event is empty
    std::fill(inner, inner + events, 0);
    for (int i = 0; i < 7; ++i) inner[rng.below(events)] += values / 8;
    inner[events - 1] += values - 7 * (values / 8);
  } else if (events > 0) {
    split_by_unit(inner, events, values, rng);
  }
  for (int64_t i = 0; i < values; ++i) value[i] = static_cast<int64_t>(rng.next());
}

int64_t written(const Problem& p, int arg, std::span<const DLTensor> args) {
  if (arg != kInnerOut && arg != kValuesOut) return p.arg_elements(arg);
  // `sizes` may be a wrong kernel's: one impossible count, and every element is compared.
  const int64_t* sizes = i64(args[kSizes]);
  int64_t events = 0, values = 0;
  for (int64_t f = 0; f < p.axes[F]; ++f) {
    if (sizes[2 * f] < 0 || sizes[2 * f] > p.axes[E] - events || sizes[2 * f + 1] < 0 ||
        sizes[2 * f + 1] > p.axes[W] - values)
      return p.arg_elements(arg);
    events += sizes[2 * f];
    values += sizes[2 * f + 1];
  }
  return arg == kInnerOut ? events : values;
}

AtenOp::Table table() {
  AtenOp::Table t;
  t.schema = {"batch_event_truncate",
              {{"F", kConst}, {"U", kVar}, {"E", kVar}, {"W", kVar}, {"F2", kDerived}},
              {{"outer_len", kIn, "i64", {F, U}},
               {"inner_len", kIn, "i64", {E}},
               {"values", kIn, "i64", {W}},
               {"outer_out", kOut, "i64", {F, U}},
               {"inner_out", kOut, "i64", {E}},
               {"values_out", kOut, "i64", {W}},
               {"sizes", kOut, "i64", {F2}}},
              {{"max_events", 100, 0, 1e12, true}},
              {"i64"}};
  t.may_be_empty = {"E", "W"};
  t.derive = [](const Definition&, std::span<int64_t> axes) {
    axes[F2] = 2 * axes[F];
    if (axes[E] == 0 && axes[W] > 0)
      return invalid("operator 'batch_event_truncate': " + std::to_string(axes[W]) +
                     " values, but no event holds them");
    return Status();
  };
  t.flops = [](const Problem& p) {
    return static_cast<double>(p.axes[F] * p.axes[U]) +
           2.0 * static_cast<double>(p.axes[E]);  // min, two sums
  };
  t.tolerance = [](const Definition&) { return exact_tolerance(); };
  t.distributions = {"model",       "nothing cut",       "one user has all",
                     "empty users", "last feature only", "few heavy events"};
  t.fill = fill_inputs;
  t.reference = reference;
  t.written = written;
  t.forms = {{"masked_select a feature", run_by_feature<truncate_by_mask>},
             {"index_select a feature", run_by_feature<truncate_by_index>},
             {"masked_select", run_at_once<truncate_by_mask>},
             {"index_select", run_at_once<truncate_by_index>}};
  return t;
}

}  // namespace

void add_jagged_ops(OpList& ops) { ops.push_back(std::make_shared<AtenOp>(table())); }

}  // namespace niche::ops
