// Status and Result: how every part of niche reports a failure that a caller can act on.
//
// The code says what the caller can do; the message says what, which and where, for example
// "record 3f2a.kc: checksum mismatch at byte 128". Exceptions of other libraries become a Status in the one
// file that wraps them. The hot path returns neither: a lookup always gives something runnable.
//
// Thread-safety: values; safe to copy and to read from several threads.
// Cost: an OK Status is one null pointer; no allocation.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace niche::dispatch {

enum class Code {
  kOk = 0,
  kNotFound,     // nothing there: a miss, not a defect
  kInvalid,      // the caller's argument is wrong; the message names it
  kUnsupported,  // understood, but not possible here; the message says why
  kCorrupt,      // data failed its check; the message names file and place
  kBusy,         // somebody else holds it, or a stated bound is reached; try later
  kIo,           // the operating system refused; the message carries errno's text
  kDevice,       // the device failed and may need a restart of the process
  kInternal,     // an invariant of niche itself is broken
};

// The name used in logs, metrics and JSON: "ok", "not_found", ...
const char* code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : rep_(code == Code::kOk ? nullptr : std::make_shared<const Rep>(Rep{code, std::move(message)})) {}

  static Status ok_status() { return {}; }
  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  const std::string& message() const;
  // "corrupt: record 3f2a.kc: checksum mismatch at byte 128"
  std::string to_string() const;

 private:
  struct Rep {
    Code code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

inline Status not_found(std::string m) { return {Code::kNotFound, std::move(m)}; }
inline Status invalid(std::string m) { return {Code::kInvalid, std::move(m)}; }
inline Status unsupported(std::string m) { return {Code::kUnsupported, std::move(m)}; }
inline Status corrupt(std::string m) { return {Code::kCorrupt, std::move(m)}; }
inline Status busy(std::string m) { return {Code::kBusy, std::move(m)}; }
inline Status io_error(std::string m) { return {Code::kIo, std::move(m)}; }
inline Status device_error(std::string m) { return {Code::kDevice, std::move(m)}; }
inline Status internal(std::string m) { return {Code::kInternal, std::move(m)}; }
// kIo with errno's text appended: errno_status("open /x/y.kc").
Status errno_status(std::string what);

// A value or the Status that says why there is none. value() requires ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : v_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(v_); }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<T>(v_); }
  const T& value() const& { return std::get<T>(v_); }
  T&& value() && { return std::get<T>(std::move(v_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::get<T>(std::move(v_)); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Status status() const { return ok() ? Status() : std::get<Status>(v_); }

 private:
  std::variant<T, Status> v_;
};

}  // namespace niche::dispatch

// Returns the Status of `expr` from the enclosing function unless it is OK.
#define NICHE_RETURN_IF_ERROR(expr)                   \
  do {                                                \
    ::niche::dispatch::Status niche_status_ = (expr); \
    if (!niche_status_.ok()) return niche_status_;    \
  } while (false)
