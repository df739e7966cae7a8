#include "runtime/ops/axis_expression.h"

#include <array>
#include <cctype>
#include <charconv>

namespace niche::ops {

using dispatch::invalid;
using dispatch::Result;
using dispatch::Status;

namespace {
constexpr size_t kTermsMax = 64;
constexpr int kDepthMax = 32;

// Not `"'" + std::string(token) + "'"`, of which GCC 12 warns at -O3 that it may overlap itself.
std::string quoted(std::string_view token) { return std::string(1, '\'').append(token).append(1, '\''); }
}  // namespace

// Recursive descent: comparison -> sum -> product -> atom.
class ExpressionParser {
 public:
  using Op = AxisExpression::Op;
  ExpressionParser(std::string_view text, const dispatch::OpSchema& schema) : text_(text), schema_(schema) {}

  Result<AxisExpression> run() {
    comparison();
    skip_space();
    if (status_.ok() && at_ < text_.size()) fail("unexpected " + quoted(text_.substr(at_, 8)));
    if (!status_.ok()) return status_;
    out_.text_ = std::string(text_);
    return out_;
  }

 private:
  struct Spelling {
    std::string_view text;
    Op op;
  };

  void fail(const std::string& what) {
    if (status_.ok())
      status_ =
          invalid("expression " + quoted(text_) + ": " + what + " at character " + std::to_string(at_ + 1));
  }
  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  void emit(Op op, int64_t value = 0) {
    if (out_.terms_.size() == kTermsMax) return fail("more than " + std::to_string(kTermsMax) + " terms");
    out_.terms_.push_back({op, value});
  }
  // The first spelling that stands here, longest first; false: none.
  template <size_t N>
  bool take(const std::array<Spelling, N>& spellings, Op& op) {
    skip_space();
    for (const Spelling& s : spellings)
      if (text_.substr(at_).starts_with(s.text)) {
        at_ += s.text.size();
        op = s.op;
        return status_.ok();
      }
    return false;
  }
  void comparison() {
    static constexpr std::array<Spelling, 6> kOps{
        {{"==", Op::kEq}, {"!=", Op::kNe}, {"<=", Op::kLe}, {">=", Op::kGe}, {"<", Op::kLt}, {">", Op::kGt}}};
    sum();
    if (Op op; take(kOps, op)) {
      sum();
      emit(op);
    }
  }
  void sum() {
    static constexpr std::array<Spelling, 2> kOps{{{"+", Op::kAdd}, {"-", Op::kSub}}};
    product();
    for (Op op; take(kOps, op);) {
      product();
      emit(op);
    }
  }
  void product() {
    static constexpr std::array<Spelling, 3> kOps{{{"*", Op::kMul}, {"//", Op::kDiv}, {"%", Op::kMod}}};
    atom();
    for (Op op; take(kOps, op);) {
      atom();
      emit(op);
    }
  }
  void atom() {
    skip_space();
    if (!status_.ok()) return;
    if (at_ == text_.size()) return fail("an operand is missing");
    const char c = text_[at_];
    if (c == '(') {
      if (++depth_ > kDepthMax) return fail("more than " + std::to_string(kDepthMax) + " parentheses deep");
      ++at_;
      sum();
      skip_space();
      if (at_ == text_.size() || text_[at_] != ')') return fail("')' is missing");
      ++at_;
      --depth_;
      return;
    }
    size_t end = at_;
    const auto word = [&](char ch) { return std::isalnum(static_cast<unsigned char>(ch)) || ch == '_'; };
    while (end < text_.size() && word(text_[end])) ++end;
    const std::string_view token = text_.substr(at_, end - at_);
    if (token.empty()) return fail("unexpected " + quoted({&c, 1}));
    if (std::isdigit(static_cast<unsigned char>(c))) {
      int64_t value = 0;
      const auto [p, error] = std::from_chars(token.data(), token.data() + token.size(), value);
      if (error != std::errc() || p != token.data() + token.size())
        return fail(quoted(token) + " is not an integer");
      emit(Op::kNumber, value);
    } else {
      const int axis = schema_.axis_index(token);
      if (axis < 0) return fail(quoted(token) + " is no axis");
      emit(Op::kAxis, axis);
    }
    at_ = end;
  }

  std::string_view text_;
  const dispatch::OpSchema& schema_;
  size_t at_ = 0;
  int depth_ = 0;
  Status status_;
  AxisExpression out_;
};

Result<AxisExpression> AxisExpression::parse(std::string_view text, const dispatch::OpSchema& schema) {
  return ExpressionParser(text, schema).run();
}

Result<int64_t> AxisExpression::evaluate(std::span<const int64_t> axes) const {
  std::array<int64_t, kTermsMax> stack;
  size_t top = 0;
  for (const Term& t : terms_) {
    if (t.op == Op::kNumber || t.op == Op::kAxis) {
      stack[top++] = t.op == Op::kNumber ? t.value : axes[static_cast<size_t>(t.value)];
      continue;
    }
    const int64_t b = stack[--top], a = stack[top - 1];
    int64_t r = 0;
    bool overflow = false;
    switch (t.op) {
      case Op::kAdd:
        overflow = __builtin_add_overflow(a, b, &r);
        break;
      case Op::kSub:
        overflow = __builtin_sub_overflow(a, b, &r);
        break;
      case Op::kMul:
        overflow = __builtin_mul_overflow(a, b, &r);
        break;
      case Op::kDiv:
      case Op::kMod: {
        if (b == 0) return invalid("expression '" + text_ + "': division by zero");
        if (a == INT64_MIN && b == -1) {
          overflow = true;
          break;
        }
        const int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0));
        r = t.op == Op::kDiv ? quotient : a - quotient * b;
        break;
      }
      case Op::kEq:
        r = a == b;
        break;
      case Op::kNe:
        r = a != b;
        break;
      case Op::kLt:
        r = a < b;
        break;
      case Op::kLe:
        r = a <= b;
        break;
      case Op::kGt:
        r = a > b;
        break;
      default:
        r = a >= b;
        break;
    }
    if (overflow) return invalid("expression '" + text_ + "': beyond 64 bits");
    stack[top - 1] = r;
  }
  return stack[0];
}

}  // namespace niche::ops
