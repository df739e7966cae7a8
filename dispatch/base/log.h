// LogSink: where messages go. The core never prints: whoever builds an object hands it a sink (runtime/ binds
// spdlog).
//
// Thread-safety: write() is called from several threads. Never called on the hot path.
#pragma once

#include <cstdint>
#include <string_view>

namespace niche::dispatch {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

class LogSink {
 public:
  virtual ~LogSink() = default;
  // `part` names who speaks ("table", "kernels_cache"); `text` says what, which and where.
  virtual void write(LogLevel level, std::string_view part, std::string_view text) = 0;
};

// Drops everything.
class NullLog final : public LogSink {
 public:
  void write(LogLevel, std::string_view, std::string_view) override {}
};

}  // namespace niche::dispatch
