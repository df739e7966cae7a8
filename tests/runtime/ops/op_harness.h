// A call of an operator over buffers that the test owns: runs its library forms in both frames and measures
// errors.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "dispatch/op_spec.h"

namespace niche::ops::test {

using dispatch::Problem;

struct Case {
  std::string op;
  std::string dtype = "f32";
  std::vector<std::pair<std::string, int64_t>> axes;  // constant and variable ones by name
  std::vector<std::pair<std::string, double>> attrs = {};
};
std::string to_string(const Case& c);
void PrintTo(const Case& c, std::ostream* os);  // what GoogleTest shows

// The built-in operators.
const dispatch::OpRegistry& registry();

// Fails the test where the case is not a problem of its operator.
Problem make_problem(const Case& c);
Problem make_problem(const dispatch::OpSpec& op, const Case& c);

// One set of arguments: contiguous memory an argument, DLTensors and pointers over it.
class Buffers {
 public:
  explicit Buffers(const Problem& p);
  Buffers(const Buffers& other);  // copies contents
  std::vector<DLTensor>& tensors() { return tensors_; }
  const std::vector<DLTensor>& tensors() const { return tensors_; }
  void** pointers() { return pointers_.data(); }
  const std::vector<char>& bytes(int arg) const { return memory_[static_cast<size_t>(arg)]; }
  std::vector<char>& bytes(int arg) { return memory_[static_cast<size_t>(arg)]; }
  void poison_outputs(unsigned char byte);
  template <typename T>
  std::vector<T> values(int arg) const {
    const auto& m = bytes(arg);
    const T* p = reinterpret_cast<const T*>(m.data());
    return {p, p + m.size() / sizeof(T)};
  }
  template <typename T>
  void set(int arg, const std::vector<T>& v);
  const Problem& problem() const { return problem_; }

 private:
  void point();
  Problem problem_;
  std::vector<std::vector<char>> memory_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<DLTensor> tensors_;
  std::vector<void*> pointers_;
};

template <typename T>
void Buffers::set(int arg, const std::vector<T>& v) {
  auto& m = bytes(arg);
  ASSERT_EQ(m.size(), v.size() * sizeof(T)) << "argument " << arg;
  std::copy(v.begin(), v.end(), reinterpret_cast<T*>(m.data()));
}

// The fp64 reference's outputs for in-out and output arguments, by argument number (empty for inputs).
class Expected {
 public:
  Expected(const dispatch::OpSpec& op, const Buffers& inputs);
  struct Error {
    double max = 0, rms = 0, scale = 0;  // scale: the largest magnitude of the reference
    int64_t wrong = 0;                   // elements that differ (integers, non-finite values)
  };
  // Compares argument `arg` of finished buffers, as far as the operator says that it is written.
  Error error(const Buffers& got, int arg) const;
  const std::vector<int>& outputs() const { return outputs_; }

 private:
  const dispatch::OpSpec* op_;
  std::vector<int> outputs_;
  std::vector<std::vector<char>> memory_;  // by output
  std::vector<DLTensor> tensors_;
  std::vector<std::vector<int64_t>> shapes_;
};

// Runs a form with plain pointers (outputs poisoned before) or on native tensors (outputs undefined before).
Buffers run_pointers(const dispatch::OpSpec& op, int form, const Buffers& inputs,
                     unsigned char poison = 0xff);
Buffers run_native(const dispatch::OpSpec& op, int form, const Buffers& inputs);

// Half an ulp of the element type, relative.
double rounding(DLDataType t);
// Half of the smallest step of the type, where its denormal numbers are in reach of an operator.
double smallest(DLDataType t);
// What a kernel's error may be, given the library's.
double bound(const dispatch::Tolerance& t, double library_error, double scale, DLDataType type);

}  // namespace niche::ops::test
