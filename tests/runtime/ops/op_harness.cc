#include "tests/runtime/ops/op_harness.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <ostream>

#include "runtime/ops/builtin.h"
#include "runtime/ops/inputs.h"

namespace niche::ops::test {

using namespace niche::dispatch;

std::string to_string(const Case& c) {
  std::string s = c.op + "." + c.dtype;
  for (const auto& [name, extent] : c.axes) s += "." + name + std::to_string(extent);
  for (const auto& [name, value] : c.attrs) s += "." + name + "=" + std::to_string(value);
  return s;
}
void PrintTo(const Case& c, std::ostream* os) { *os << to_string(c); }

const OpRegistry& registry() {
  static const auto* r = [] {
    at::set_num_threads(1);  // tests share the machine: OpenMP's spinning makes 2 s of work into 80
    auto* made = new OpRegistry();
    const Status s = register_builtin_ops(*made);
    EXPECT_TRUE(s.ok()) << s.to_string();
    return made;
  }();
  return *r;
}

Problem make_problem(const OpSpec& op, const Case& c) {
  const OpSchema& schema = *op.schema();
  std::vector<std::pair<std::string, int64_t>> constants;
  Problem p;
  for (const auto& [name, extent] : c.axes) {
    const int i = schema.axis_index(name);
    EXPECT_GE(i, 0) << c.op << " has no axis " << name;
    if (i < 0) continue;
    p.axes[static_cast<size_t>(i)] = extent;
    if (schema.axes[static_cast<size_t>(i)].kind == AxisKind::kConst) constants.emplace_back(name, extent);
  }
  auto d = Definition::make(op.schema(), *parse_dtype(c.dtype), constants, c.attrs);
  EXPECT_TRUE(d.ok()) << d.status().to_string();
  if (d.ok()) p.definition = *d;
  const Status s = op.derive_axes(*p.definition, std::span(p.axes.data(), schema.axes.size()));
  EXPECT_TRUE(s.ok()) << s.to_string();
  return p;
}

Problem make_problem(const Case& c) { return make_problem(*registry().find(c.op), c); }

Buffers::Buffers(const Problem& p) : problem_(p) {
  const auto& schema = p.definition->schema();
  for (int i = 0; i < static_cast<int>(schema.args.size()); ++i) {
    const bool present = p.definition->has_arg(i);
    memory_.emplace_back(present ? static_cast<size_t>(p.arg_bytes(i)) : 0);
    shapes_.push_back(p.arg_shape(i));
  }
  point();
}

Buffers::Buffers(const Buffers& other)
    : problem_(other.problem_), memory_(other.memory_), shapes_(other.shapes_) {
  point();
}

void Buffers::point() {
  static char nothing[64];  // a non-null address for empty tensors
  for (size_t i = 0; i < memory_.size(); ++i) {
    const bool present = problem_.definition->has_arg(static_cast<int>(i));
    DLTensor t{};
    t.data = !present ? nullptr : memory_[i].empty() ? nothing : memory_[i].data();
    t.device = {kDLCPU, 0};
    t.ndim = static_cast<int>(shapes_[i].size());
    t.dtype = problem_.definition->arg_dtype(static_cast<int>(i));
    t.shape = shapes_[i].data();
    tensors_.push_back(t);
    pointers_.push_back(t.data);
  }
}

void Buffers::poison_outputs(unsigned char byte) {
  const auto& args = problem_.definition->schema().args;
  for (size_t i = 0; i < args.size(); ++i)
    if (args[i].role == ArgRole::kOut) std::memset(memory_[i].data(), byte, memory_[i].size());
}

Expected::Expected(const OpSpec& op, const Buffers& inputs) : op_(&op) {
  const Problem& p = inputs.problem();
  const auto& args = p.definition->schema().args;
  for (int i = 0; i < static_cast<int>(args.size()); ++i)
    if (args[static_cast<size_t>(i)].role != ArgRole::kIn) outputs_.push_back(i);
  memory_.resize(outputs_.size());
  shapes_.resize(outputs_.size());
  for (size_t o = 0; o < outputs_.size(); ++o) {
    DLTensor t = inputs.tensors()[static_cast<size_t>(outputs_[o])];
    if (is_float(t.dtype)) t.dtype = kF64;
    shapes_[o] = p.arg_shape(outputs_[o]);
    memory_[o].assign(static_cast<size_t>(p.arg_elements(outputs_[o])) * dtype_bytes(t.dtype) + 1, 0x5a);
    t.data = memory_[o].data();
    t.shape = shapes_[o].data();
    tensors_.push_back(t);
  }
  const Buffers before(inputs);
  const Status s = op.reference(p, inputs.tensors(), tensors_);
  EXPECT_TRUE(s.ok()) << s.to_string();
  for (int i = 0; i < static_cast<int>(args.size()); ++i)
    EXPECT_EQ(before.bytes(i), inputs.bytes(i))
        << "the reference changed argument " << args[static_cast<size_t>(i)].name;
}

Expected::Error Expected::error(const Buffers& got, int arg) const {
  Error e;
  size_t o = 0;
  while (outputs_[o] != arg) ++o;
  const int64_t n = op_->written_elements(got.problem(), arg, got.tensors());
  const DLTensor& want = tensors_[o];
  const DLTensor& have = got.tensors()[static_cast<size_t>(arg)];
  if (!is_float(have.dtype)) {
    for (int64_t i = 0; i < n; ++i) e.wrong += i64(have)[i] != i64(want)[i];
    e.max = e.rms = static_cast<double>(e.wrong);
    return e;
  }
  double squares = 0;
  const double largest = same_dtype(have.dtype, kF16) ? 65504 : INFINITY;
  for (int64_t i = 0; i < n; ++i) {
    // A reference beyond the type's end is an infinity there.
    const double r = load(want, i), h = load(have, i),
                 w = std::abs(r) > largest ? std::copysign(INFINITY, r) : r;
    if (!std::isfinite(h) || !std::isfinite(w)) {
      e.wrong += !(h == w || (std::isnan(h) && std::isnan(w)));
      continue;
    }
    e.scale = std::max(e.scale, std::abs(w));
    e.max = std::max(e.max, std::abs(h - w));
    squares += (h - w) * (h - w);
  }
  e.rms = n ? std::sqrt(squares / static_cast<double>(n)) : 0;
  return e;
}

namespace {

struct Frame {
  NicheKernelArgs args{};
  std::vector<long> extents;
  CallFrame frame;
  Frame(const Problem& p, void** pointers, void* native) {
    for (int64_t e : p.axes) extents.push_back(e);
    args.p = pointers;
    args.n = extents.data();
    args.a = p.definition->attrs().data();
    frame = {p.definition.get(), &args, native};
  }
};

}  // namespace

Buffers run_pointers(const OpSpec& op, int form, const Buffers& inputs, unsigned char poison) {
  Buffers b(inputs);
  b.poison_outputs(poison);
  const Frame f(b.problem(), b.pointers(), nullptr);
  op.run_fallback(form, f.frame);
  return b;
}

Buffers run_native(const OpSpec& op, int form, const Buffers& inputs) {
  Buffers b(inputs);
  b.poison_outputs(0xff);
  auto native = op.wrap(b.problem(), b.pointers());
  const Frame f(b.problem(), b.pointers(), native->get());
  op.run_fallback(form, f.frame);
  std::vector<void*> out(b.tensors().size(), nullptr);
  native->outputs(out.data());
  const auto& args = b.problem().definition->schema().args;
  for (int i = 0; i < static_cast<int>(args.size()); ++i) {
    if (args[static_cast<size_t>(i)].role != ArgRole::kOut) continue;
    EXPECT_TRUE(out[static_cast<size_t>(i)] || b.bytes(i).empty()) << "output " << i << " was not allocated";
    if (!b.bytes(i).empty()) std::memcpy(b.bytes(i).data(), out[static_cast<size_t>(i)], b.bytes(i).size());
  }
  return b;
}

double rounding(DLDataType t) {
  if (same_dtype(t, kF32)) return 0x1p-24;
  if (same_dtype(t, kBf16)) return 0x1p-9;
  if (same_dtype(t, kF16)) return 0x1p-12;
  return 0;
}

double bound(const Tolerance& t, double library_error, double scale, DLDataType type) {
  return t.exact ? 0 : t.factor * library_error + t.floor_abs + scale * rounding(type) + smallest(type);
}
double smallest(DLDataType t) { return same_dtype(t, kF16) ? 0x1p-25 : 0; }

}  // namespace niche::ops::test
