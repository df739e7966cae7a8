#include "tests/runtime/ops_cpu/harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <sstream>

#include "tests/runtime/ops_cpu/compiled_batch.h"

namespace niche::ops_cpu_test {
namespace {

using dispatch::ArgRole;
using dispatch::Definition;
using evolve::CpuTarget;
using evolve::Point;
using evolve::TemplateFamily;

bool writes(ArgRole r) { return r != ArgRole::kIn; }

bool random_point(const TemplateFamily& f, const Definition& d, const CpuTarget& t, Rng& rng, Point* out) {
  for (int attempt = 0; attempt < 20000; ++attempt) {
    Point p;
    for (const evolve::Param& param : f.params())
      p.push_back(static_cast<int>(rng.below(static_cast<int64_t>(param.values.size()))));
    if (f.valid(d, t, p)) return *out = p, true;
  }
  return false;
}

Call make_call(const OpTest& test, const Definition& d, const std::vector<int64_t>& vars, uint64_t seed) {
  Call call{&d, std::vector<int64_t>(dispatch::kMaxAxes, 0), {}};
  for (size_t i = 0; i < d.const_extents().size(); ++i) call.axes[i] = d.const_extents()[i];
  for (size_t i = 0; i < vars.size(); ++i) call.axes[static_cast<size_t>(d.var_axes()[i])] = vars[i];
  if (test.derive) test.derive(call.axes);
  const auto& args = d.schema().args;
  for (size_t a = 0; a < args.size(); ++a) {
    int64_t n = 1;
    for (int axis : args[a].shape) n *= call.axes[static_cast<size_t>(axis)];
    call.args.emplace_back(d.arg_dtype(static_cast<int>(a)), d.has_arg(static_cast<int>(a)) ? n : 0);
  }
  Rng rng{seed};
  test.fill(call, rng);
  return call;
}

// Runs once in guarded memory; returns the written arrays, and reports a changed input or fence.
std::vector<Array> run_once(const CompiledBatch& batch, int kernel, const Call& call, uint8_t poison,
                            bool at_end, size_t shift_elements, int64_t pieces, const std::string& what) {
  const auto& args = call.definition->schema().args;
  std::vector<GuardedBuffer> buffers;
  std::vector<void*> p;
  std::vector<bool> constant;
  buffers.reserve(args.size());
  for (size_t a = 0; a < args.size(); ++a) {
    const Array& src = call.args[a];
    const size_t element = dispatch::dtype_bytes(src.type);
    size_t shift = shift_elements * element;
    if (shift_elements == 0 && at_end) shift = (64 - src.bytes.size() % 64) % 64;
    buffers.emplace_back(src.bytes.size(), shift, at_end);
    if (args[a].role == ArgRole::kOut)
      std::memset(buffers.back().data(), poison, src.bytes.size());
    else if (!src.bytes.empty())
      std::memcpy(buffers.back().data(), src.bytes.data(), src.bytes.size());
    p.push_back(call.definition->has_arg(static_cast<int>(a)) ? buffers.back().data() : nullptr);
    constant.push_back(args[a].constant);
  }
  std::vector<long> axes(call.axes.begin(), call.axes.end());
  EXPECT_TRUE(batch.run(kernel, p.data(), axes.data(), call.definition->attrs().data(), constant, pieces))
      << what << ": workspace overrun";
  std::vector<Array> out;
  for (size_t a = 0; a < args.size(); ++a) {
    EXPECT_TRUE(buffers[a].fence_intact()) << what << ": wrote around '" << args[a].name << "'";
    if (!writes(args[a].role)) {
      EXPECT_TRUE(call.args[a].bytes.empty() ||
                  std::memcmp(buffers[a].data(), call.args[a].bytes.data(), buffers[a].size()) == 0)
          << what << ": changed input '" << args[a].name << "'";
      continue;
    }
    Array r = call.args[a];
    if (!r.bytes.empty()) std::memcpy(r.bytes.data(), buffers[a].data(), r.bytes.size());
    out.push_back(std::move(r));
  }
  return out;
}

void compare(const OpTest& test, const Call& call, const std::vector<Array>& got,
             const std::vector<Array>& want, const std::string& what) {
  const auto& args = call.definition->schema().args;
  size_t o = 0;
  for (size_t a = 0; a < args.size(); ++a) {
    if (!writes(args[a].role)) continue;
    const Array &y = got[o], &r = want[o];
    ++o;
    const int64_t n = test.written ? test.written(call, static_cast<int>(a), want) : y.size();
    if (!dispatch::is_float(y.type)) {
      for (int64_t i = 0; i < n; ++i)
        if (y.get_int(i) != r.get_int(i)) {
          ADD_FAILURE() << what << ": '" << args[a].name << "' element " << i << " of " << n << " is "
                        << y.get_int(i) << ", expected " << r.get_int(i);
          break;
        }
      continue;
    }
    const double tolerance =
        dispatch::same_dtype(y.type, dispatch::kBf16) ? test.tolerance_bf16 : test.tolerance_f32;
    double mean = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < n; ++i)
      if (std::isfinite(r.get(i))) mean += std::abs(r.get(i)), ++finite;
    mean = finite > 0 ? mean / static_cast<double>(finite) : 0;
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double v = y.get(i), e = r.get(i);
      const bool special = !std::isfinite(e);
      const double error = special ? 0 : std::abs(v - e) / (std::abs(e) + mean + 1e-30);
      worst = std::max(worst, error);
      const bool bad = special ? (std::isnan(e) ? !std::isnan(v) : v != e) : !(error <= tolerance);
      if (!bad) continue;
      ADD_FAILURE() << what << ": '" << args[a].name << "' element " << i << " of " << n << " is " << v
                    << ", expected " << e << " (error " << error << ", tolerance " << tolerance << ")";
      break;
    }
  }
}

// Rows of `call` computed alone must carry the bits they had together.
void check_rows_alone(const OpTest& test, const CompiledBatch& batch, int kernel, const Call& call,
                      const std::vector<Array>& together, const std::string& what) {
  const auto& args = call.definition->schema().args;
  const int64_t rows = call.axes[static_cast<size_t>(test.row_axis)];
  for (int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
    Call one = call;
    one.axes[static_cast<size_t>(test.row_axis)] = 1;
    std::vector<bool> by_row;
    for (size_t a = 0; a < args.size(); ++a) {
      by_row.push_back(!args[a].shape.empty() && args[a].shape[0] == test.row_axis &&
                       call.definition->has_arg(static_cast<int>(a)));
      if (!by_row.back()) continue;
      const size_t bytes = call.args[a].bytes.size() / static_cast<size_t>(rows);
      const auto from = call.args[a].bytes.begin() + static_cast<ptrdiff_t>(bytes) * row;
      one.args[a].bytes.assign(from, from + static_cast<ptrdiff_t>(bytes));
    }
    const std::vector<Array> alone = run_once(batch, kernel, one, 0xFF, true, 1, 1, what + " row alone");
    size_t o = 0;
    for (size_t a = 0; a < args.size(); ++a) {
      if (!writes(args[a].role)) continue;
      const std::vector<uint8_t>& whole = together[o].bytes;
      const std::vector<uint8_t>& part = alone[o++].bytes;
      if (!by_row[a]) continue;
      EXPECT_EQ(std::memcmp(part.data(), whole.data() + part.size() * static_cast<size_t>(row), part.size()),
                0)
          << what << ": row " << row << " of " << rows << " has other bits when computed alone";
    }
  }
}

void check_kernel(const OpTest& test, const CompiledBatch& batch, int kernel, const Call& call,
                  const std::vector<Array>& want, const std::string& what) {
  const std::vector<Array> first = run_once(batch, kernel, call, 0xFF, true, 0, 1, what);
  compare(test, call, first, want, what);
  struct Way {
    uint8_t poison;
    bool at_end;
    size_t shift;
    int64_t pieces;
  };
  for (const Way w : {Way{0x00, true, 1, 3}, Way{0x7F, false, 1, 0}, Way{0xFF, false, 0, 2}}) {
    const std::vector<Array> again =
        run_once(batch, kernel, call, w.poison, w.at_end, w.shift, w.pieces, what);
    size_t o = 0;
    const auto& args = call.definition->schema().args;
    for (size_t a = 0; a < args.size(); ++a) {
      if (!writes(args[a].role)) continue;
      const Array &x = first[o], &y = again[o];
      ++o;
      const int64_t n = test.written ? test.written(call, static_cast<int>(a), want) : x.size();
      if (!batch.source(kernel).properties.deterministic) continue;
      EXPECT_TRUE(n == 0 || std::memcmp(x.bytes.data(), y.bytes.data(),
                                        static_cast<size_t>(n) * dispatch::dtype_bytes(x.type)) == 0)
          << what << ": '" << args[a].name << "' differs between two runs (split in " << w.pieces
          << ", aligned " << (w.shift == 0) << ")";
    }
  }
  if (test.row_axis >= 0 && batch.source(kernel).properties.batch_invariant &&
      call.axes[static_cast<size_t>(test.row_axis)] > 1)
    check_rows_alone(test, batch, kernel, call, first, what);
}

}  // namespace

void check_family(const TemplateFamily& family, const OpTest& test, const std::vector<DefinitionCase>& cases,
                  int random_points, uint64_t seed) {
  const CpuTarget target = native_target();
  if (!target.avx2) GTEST_SKIP() << "no AVX2 here";
  Rng rng{seed};
  std::set<std::string> dtypes;
  int random_left = random_points;
  for (size_t k = 0; k < cases.size(); ++k) {
    const DefinitionCase& c = cases[k];
    const auto d = make_definition(test, c);
    const std::vector<Point> seeds = family.seeds(*d, target);
    ASSERT_FALSE(seeds.empty()) << family.name() << " has no seed for " << d->name();
    // Each point costs some 50 ms to compile: all seeds once a dtype, then a moving selection of them.
    std::vector<Point> points;
    if (dtypes.insert(c.dtype).second)
      points = seeds;
    else
      for (size_t i = 0; i < std::min<size_t>(3, seeds.size()); ++i)
        points.push_back(seeds[(k + 3 * i) % seeds.size()]);
    const int random_here = random_left / static_cast<int>(cases.size() - k);
    Point p;
    for (int i = 0; i < random_here && random_point(family, *d, target, rng, &p); ++i) points.push_back(p);
    random_left -= random_here;
    CompiledBatch batch;
    for (size_t i = 0; i < points.size(); ++i)
      batch.add(family.render(*d, target, points[i], "_k" + std::to_string(i)));
    const std::string error = batch.build("native", true);
    ASSERT_TRUE(error.empty()) << d->name() << ": " << error.substr(0, 1500);
    for (const auto& vars : c.var_axes) {
      const Call call = make_call(test, *d, vars, rng.next());
      std::vector<Array> want;
      for (size_t a = 0; a < call.args.size(); ++a)
        if (writes(d->schema().args[a].role))
          want.emplace_back(dispatch::is_float(call.args[a].type) ? dispatch::kF64 : call.args[a].type,
                            call.args[a].size());
      test.reference(call, want);
      for (size_t i = 0; i < points.size(); ++i) {
        const evolve::KernelSource& s = batch.source(static_cast<int>(i));
        const dispatch::Guard& g = s.limits;
        if (g.var_count > 0 && !g.holds(*d, call.axes.data())) continue;
        std::ostringstream what;
        what << d->name() << " [";
        for (int64_t v : vars) what << ' ' << v;
        what << " ] " << family.name() << " " << family.describe(points[i]);
        check_kernel(test, batch, static_cast<int>(i), call, want, what.str());
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

void check_compiles_for_avx512(const TemplateFamily& family, const OpTest& test, const DefinitionCase& c) {
  const auto d = make_definition(test, c);
  for (const char* march : {"x86-64-v4", "sapphirerapids"}) {
    CpuTarget t = avx512_target();
    t.avx512_bf16 = std::string(march) == "sapphirerapids";
    std::vector<Point> points = family.seeds(*d, t);
    if (points.size() > 3) points.resize(3);
    Rng rng{7};
    Point p;
    for (int i = 0; i < 5 && random_point(family, *d, t, rng, &p); ++i) points.push_back(p);
    CompiledBatch batch;
    for (size_t i = 0; i < points.size(); ++i)
      batch.add(family.render(*d, t, points[i], "_k" + std::to_string(i)));
    const std::string error = batch.build(march, false);
    EXPECT_TRUE(error.empty()) << d->name() << " for " << march << ": " << error.substr(0, 1500);
  }
}

void check_space(const TemplateFamily& family, const OpTest& test, const DefinitionCase& c, int64_t minimum) {
  const auto d = make_definition(test, c);
  CpuTarget avx2;
  avx2.avx2 = true;
  for (CpuTarget t : {avx2, avx512_target()})
    for (int threads : {1, 2}) {
      t.threads = threads;
      const std::string where =
          d->name() + (t.avx512 ? " AVX-512" : " AVX2") + " threads=" + std::to_string(threads);
      EXPECT_GE(family.count_valid(*d, t), minimum) << where;
      std::set<Point> unique;
      const std::vector<Point> seeds = family.seeds(*d, t);
      EXPECT_FALSE(seeds.empty()) << where;
      for (const Point& p : seeds) {
        EXPECT_TRUE(family.valid(*d, t, p)) << where << ": invalid seed " << family.describe(p);
        EXPECT_TRUE(unique.insert(p).second) << where << ": seed twice: " << family.describe(p);
      }
    }
}

}  // namespace niche::ops_cpu_test
