#include "dispatch/base/format.h"

#include <cstdarg>
#include <cstdio>

namespace niche::dispatch {

std::string format(const char* pattern, ...) {
  char few[256];
  va_list args, again;
  va_start(args, pattern);
  va_copy(again, args);
  const int length = std::vsnprintf(few, sizeof few, pattern, args);
  va_end(args);
  std::string text(few);
  if (length >= static_cast<int>(sizeof few)) {
    text.resize(static_cast<size_t>(length));
    std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  }
  va_end(again);
  return length < 0 ? std::string() : text;
}

}  // namespace niche::dispatch
