// Harness for the CPU template families: render -> compile -> dlopen -> run between guard pages -> compare
// with a plain double reference that the test writes. No libtorch, no evaluator: what a family promises is
// checked here alone.
//
// A test describes an operator by its schema, and for each Definition a few problems, a function that fills
// the inputs and one that computes the reference. check_family() then takes every seed and some random valid
// points of the family, compiles them in one unit (each in its own namespace) and runs each one on each
// problem:
//   * buffers end at a guard page, or start right after one; addresses aligned to the element only, and to 64
//   bytes,
//   * outputs poisoned in two ways, every element compared, inputs compared afterwards, workspace fenced,
//   * the tasks split in three ways and run in odd order: all bits must agree,
//   * where the kernel says batch_invariant, rows computed alone must have the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/definition.h"
#include "dispatch/kernel.h"
#include "evolve/template_family.h"

namespace niche::ops_cpu_test {

// A host array in an argument's own type, read and written as double or int64.
struct Array {
  DLDataType type{};
  std::vector<uint8_t> bytes;

  Array() = default;
  Array(DLDataType t, int64_t elements)
      : type(t), bytes(static_cast<size_t>(elements) * dispatch::dtype_bytes(t)) {}
  int64_t size() const { return static_cast<int64_t>(bytes.size() / dispatch::dtype_bytes(type)); }
  double get(int64_t i) const;
  void set(int64_t i, double v);  // rounds to the type
  int64_t get_int(int64_t i) const { return reinterpret_cast<const int64_t*>(bytes.data())[i]; }
  void set_int(int64_t i, int64_t v) { reinterpret_cast<int64_t*>(bytes.data())[i] = v; }
};

// Small, seeded, good enough: splitmix64.
struct Rng {
  uint64_t state;
  uint64_t next();
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  double normal();
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
};

// One call: `args` by the schema's order (outputs sized, contents unused), `axes` one value a schema axis.
struct Call {
  const dispatch::Definition* definition;
  std::vector<int64_t> axes;
  std::vector<Array> args;
};

struct OpTest {
  std::shared_ptr<const dispatch::OpSchema> schema;
  // Fills derived axes; may be empty.
  std::function<void(std::vector<int64_t>& axes)> derive;
  std::function<void(Call&, Rng&)> fill;  // kIn and kInOut
  // want[i]: one array a kInOut and kOut argument, in order; f64 where the argument is floating, else its
  // type.
  std::function<void(const Call&, std::vector<Array>& want)> reference;
  // Leading elements of argument `arg` that count; empty: all.
  std::function<int64_t(const Call&, int arg, const std::vector<Array>& want)> written;
  // The variable axis whose rows are independent (for batch invariance), and arguments it indexes first; -1:
  // none.
  int row_axis = -1;
  double tolerance_f32 = 3e-6;  // |y - ref| <= tolerance * (|ref| + mean |ref|)
  double tolerance_bf16 = 4.5e-3;
};

struct DefinitionCase {
  std::string dtype;
  std::vector<std::pair<std::string, int64_t>> consts;
  std::vector<std::pair<std::string, double>> attrs;
  std::vector<std::vector<int64_t>> var_axes;  // problems
};

// What this machine is; and what a machine with AVX-512 would be, for compile-only tests.
evolve::CpuTarget native_target(int threads = 2);
evolve::CpuTarget avx512_target(int threads = 2);

// Runs everything described above: all seeds for the first case of each dtype, some for the others, and
// `random_points` random points spread over the cases. Failures are reported through GoogleTest with the
// point's description.
void check_family(const evolve::TemplateFamily& family, const OpTest& test,
                  const std::vector<DefinitionCase>& cases, int random_points = 12, uint64_t seed = 1);

// Compiles seeds and corner points for AVX-512 (x86-64-v4, and with the bf16 instructions) without running
// them.
void check_compiles_for_avx512(const evolve::TemplateFamily& family, const OpTest& test,
                               const DefinitionCase& c);

// count_valid >= minimum for AVX2 and AVX-512 targets, one and two threads; seeds valid, unique, at least
// one.
void check_space(const evolve::TemplateFamily& family, const OpTest& test, const DefinitionCase& c,
                 int64_t minimum = 200);

// The Definition of a case; aborts the test program on a schema error.
std::shared_ptr<const dispatch::Definition> make_definition(const OpTest& test, const DefinitionCase& c);

// A shorter way to write schemas: axes "M:v N:c", args "x:in:T:0,1".
std::shared_ptr<const dispatch::OpSchema> make_schema(const std::string& op, const std::string& axes,
                                                      const std::vector<std::string>& args,
                                                      std::vector<dispatch::AttrSpec> attrs,
                                                      std::vector<std::string> dtypes);

}  // namespace niche::ops_cpu_test
