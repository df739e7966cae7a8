#include "dispatch/base/status.h"

#include <cerrno>
#include <cstring>

namespace niche::dispatch {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kNotFound:
      return "not_found";
    case Code::kInvalid:
      return "invalid";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kBusy:
      return "busy";
    case Code::kIo:
      return "io";
    case Code::kDevice:
      return "device";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

const std::string& Status::message() const {
  static const std::string empty;
  return rep_ ? rep_->message : empty;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(code_name(rep_->code)) + ": " + rep_->message;
}

Status errno_status(std::string what) {
  const int e = errno;
  return io_error(what + ": " + std::strerror(e));
}

}  // namespace niche::dispatch
