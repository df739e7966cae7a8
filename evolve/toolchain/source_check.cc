#include "evolve/toolchain/source_check.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace niche::evolve {
namespace {

using dispatch::Status;

constexpr std::array kDirectives = {"define", "undef", "if",    "ifdef", "ifndef",
                                    "elif",   "else",  "endif", "error", "pragma"};
// #pragma GCC dependency and pch_preprocess open files: only what changes code generation is let through.
constexpr std::array kPragmas = {"GCC unroll",       "GCC ivdep",       "GCC optimize",   "GCC target",
                                 "GCC push_options", "GCC pop_options", "GCC diagnostic", "clang loop",
                                 "unroll",           "clang fp"};
constexpr std::array kRefusedWords = {
    "section",        "__section__",   "constructor", "__constructor__",    "destructor",
    "__destructor__", "ifunc",         "__ifunc__",   "init_priority",      "__init_priority__",
    "_Pragma",        "__has_include", "__has_embed", "__has_include_next", "thread_local",
    "__thread",       "_Thread_local"};
constexpr std::array kAsmWords = {"asm", "__asm", "__asm__"};

template <typename Names>
bool contains(const Names& names, std::string_view word) {
  return std::find(names.begin(), names.end(), word) != names.end();
}

bool word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$'; }

class Reader {
 public:
  Reader(std::string_view name, std::string_view text) : name_(name), text_(text) {}

  Status read() {
    while (pos_ < text_.size()) NICHE_RETURN_IF_ERROR(step());
    return {};
  }

 private:
  Status refuse(const std::string& what) const {
    return dispatch::invalid(std::string(name_) + " line " + std::to_string(line_) + ": " + what);
  }
  // Appended: g++ 12 at -O3 takes "'" + a temporary for an overlap (-Wrestrict, GCC bug 105651).
  Status refuse_named(std::string_view before, std::string_view name, std::string_view after = {}) const {
    return refuse(std::string(before).append(name).append(after).append(" is refused in a kernel"));
  }
  bool at(std::string_view s) const { return text_.substr(pos_, s.size()) == s; }
  char peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0'; }
  void advance() {
    if (text_[pos_] == '\n') ++line_, line_start_ = true;
    ++pos_;
  }

  Status step() {
    const char c = peek();
    if (c == '\n' || c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') return advance(), Status();
    if (at("//")) return line_comment();
    if (at("/*")) return block_comment();
    if (c == '\\')
      return refuse("a backslash outside a literal (spliced lines and universal names are refused)");
    if (static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) < 0x20)
      return refuse("a byte outside printable ASCII");
    if (at("#") || at("%:")) {
      if (at("##") || at("%:%:")) return refuse("token pasting (##)");
      if (line_start_) return directive();
    }
    line_start_ = false;
    if (c == '"') return literal('"');
    if (c == '\'') return literal('\'');
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) return number();
    if (word_char(c)) return word();
    advance();
    return {};
  }

  Status line_comment() {
    while (pos_ < text_.size() && peek() != '\n') {
      if (peek() == '\\' && (peek(1) == '\n' || peek(1) == '\r'))
        return refuse("a comment continued by a backslash");
      advance();
    }
    return {};
  }

  Status block_comment() {
    const bool start = line_start_;
    pos_ += 2;
    while (pos_ < text_.size() && !at("*/")) advance();
    if (pos_ >= text_.size()) return refuse("a comment without end");
    pos_ += 2;
    line_start_ = line_start_ || start;
    return {};
  }

  Status literal(char quote) {
    advance();
    while (pos_ < text_.size() && peek() != quote) {
      if (peek() == '\n') return refuse("a literal that does not end on its line");
      if (peek() == '\\') advance();
      if (pos_ < text_.size()) advance();
    }
    if (pos_ >= text_.size()) return refuse("a literal without end");
    advance();
    return {};
  }

  // A digit separator (1'000) is not the start of a character literal.
  Status number() {
    while (word_char(peek()) || peek() == '.' || (peek() == '\'' && word_char(peek(1)))) advance();
    return {};
  }

  std::string_view take_word() {
    const size_t start = pos_;
    while (word_char(peek())) ++pos_;
    return text_.substr(start, pos_ - start);
  }

  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') advance();
  }

  Status word() {
    const std::string_view w = take_word();
    if (peek() == '"' && w.back() == 'R') return refuse("a raw string literal");
    if (contains(kRefusedWords, w)) return refuse_named("'", w, "'");
    if (contains(kAsmWords, w)) return assembly();
    return {};
  }

  // asm, optional volatile, then an empty template: a register pin without instructions.
  Status assembly() {
    skip_blanks();
    if (std::isalpha(static_cast<unsigned char>(peek())) != 0 || peek() == '_') {
      const std::string_view w = take_word();
      if (w != "volatile" && w != "__volatile__" && w != "__volatile") return refuse("inline assembly");
      skip_blanks();
    }
    if (peek() != '(') return refuse("inline assembly");
    advance();
    skip_blanks();
    if (!at("\"\"")) return refuse("inline assembly with instructions");
    pos_ += 2;
    skip_blanks();
    if (peek() != ':' && peek() != ')') return refuse("inline assembly with instructions");
    return {};
  }

  Status directive() {
    pos_ += at("%:") ? 2 : 1;
    while (peek() == ' ' || peek() == '\t') ++pos_;
    if (peek() == '\n' || peek() == '\0') return {};  // the null directive
    const std::string_view name = take_word();
    if (!contains(kDirectives, name)) return refuse_named("#", name.empty() ? "..." : name);
    line_start_ = false;
    if (name != "pragma") return {};
    while (peek() == ' ' || peek() == '\t') ++pos_;
    const std::string_view rest = text_.substr(pos_, text_.find('\n', pos_) - pos_);
    const bool known = std::any_of(kPragmas.begin(), kPragmas.end(), [&](std::string_view p) {
      return rest.substr(0, p.size()) == p && (rest.size() == p.size() || !word_char(rest[p.size()]));
    });
    if (!known) return refuse_named("#pragma ", rest.substr(0, 40));
    return {};
  }

  std::string_view name_, text_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_start_ = true;
};

}  // namespace

Status check_source(std::string_view name, std::string_view text) { return Reader(name, text).read(); }

}  // namespace niche::evolve
