// Arrays, random numbers, targets and schemas for the harness.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "tests/runtime/ops_cpu/harness.h"

namespace niche::ops_cpu_test {

double Array::get(int64_t i) const {
  const auto k = static_cast<size_t>(i);
  if (dispatch::same_dtype(type, dispatch::kF64)) return reinterpret_cast<const double*>(bytes.data())[k];
  if (dispatch::same_dtype(type, dispatch::kF32)) return reinterpret_cast<const float*>(bytes.data())[k];
  if (dispatch::same_dtype(type, dispatch::kI64))
    return static_cast<double>(reinterpret_cast<const int64_t*>(bytes.data())[k]);
  const uint32_t u = static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(bytes.data())[k]) << 16;
  float f = 0;
  std::memcpy(&f, &u, 4);
  return f;
}

void Array::set(int64_t i, double v) {
  const auto k = static_cast<size_t>(i);
  if (dispatch::same_dtype(type, dispatch::kF64)) {
    reinterpret_cast<double*>(bytes.data())[k] = v;
  } else if (dispatch::same_dtype(type, dispatch::kF32)) {
    reinterpret_cast<float*>(bytes.data())[k] = static_cast<float>(v);
  } else if (dispatch::same_dtype(type, dispatch::kI64)) {
    reinterpret_cast<int64_t*>(bytes.data())[k] = static_cast<int64_t>(v);
  } else {
    const auto f = static_cast<float>(v);
    uint32_t u = 0;
    std::memcpy(&u, &f, 4);
    reinterpret_cast<uint16_t*>(bytes.data())[k] =
        static_cast<uint16_t>(f != f ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
}

uint64_t Rng::next() {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

double Rng::normal() {
  const double u = 1.0 - uniform(), v = uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * M_PI * v);
}

evolve::CpuTarget native_target(int threads) {
  evolve::CpuTarget t;
  __builtin_cpu_init();
  t.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  t.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  t.avx512_bf16 = t.avx512 && __builtin_cpu_supports("avx512bf16");
  t.threads = threads;
  return t;
}

evolve::CpuTarget avx512_target(int threads) {
  evolve::CpuTarget t;
  t.avx2 = t.avx512 = true;
  t.threads = threads;
  return t;
}

std::shared_ptr<const dispatch::Definition> make_definition(const OpTest& test, const DefinitionCase& c) {
  const auto dtype = dispatch::parse_dtype(c.dtype);
  auto d = dispatch::Definition::make(test.schema, dtype.ok() ? *dtype : DLDataType{}, c.consts, c.attrs);
  if (!d.ok()) std::fprintf(stderr, "%s\n", d.status().to_string().c_str()), std::abort();
  return *d;
}

std::shared_ptr<const dispatch::OpSchema> make_schema(const std::string& op, const std::string& axes,
                                                      const std::vector<std::string>& args,
                                                      std::vector<dispatch::AttrSpec> attrs,
                                                      std::vector<std::string> dtypes) {
  auto s = std::make_shared<dispatch::OpSchema>();
  s->op = op;
  std::istringstream in(axes);
  for (std::string word; in >> word;) {
    const char kind = word.back();
    s->axes.push_back({word.substr(0, word.size() - 2), kind == 'c'   ? dispatch::AxisKind::kConst
                                                        : kind == 'v' ? dispatch::AxisKind::kVar
                                                                      : dispatch::AxisKind::kDerived});
  }
  // "weight:in:T:1:c" = name, role, dtype, axes by index, flags (c constant, o optional)
  for (const std::string& text : args) {
    std::vector<std::string> part(1);
    for (char ch : text) {
      if (ch == ':')
        part.emplace_back();
      else
        part.back() += ch;
    }
    part.resize(5);
    dispatch::ArgSpec a;
    a.name = part[0];
    a.role = part[1] == "in"      ? dispatch::ArgRole::kIn
             : part[1] == "inout" ? dispatch::ArgRole::kInOut
                                  : dispatch::ArgRole::kOut;
    a.dtype = part[2];
    std::istringstream shape(part[3]);
    for (std::string n; std::getline(shape, n, ',');) a.shape.push_back(std::atoi(n.c_str()));
    a.constant = part[4].find('c') != std::string::npos;
    a.optional = part[4].find('o') != std::string::npos;
    s->args.push_back(a);
  }
  s->attrs = std::move(attrs);
  s->dtypes = std::move(dtypes);
  return s;
}

}  // namespace niche::ops_cpu_test
