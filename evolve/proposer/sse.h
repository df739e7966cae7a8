// SseParser: server-sent events out of bytes that arrive in any pieces. Lines end with LF or CR LF; fields
// other than `event` and `data` are skipped.
//
// Thread-safety: one owner. Bounds: an event is at most 1 MiB; a longer one makes the parser fail for good.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace niche::evolve::proposer {

class SseParser {
 public:
  static constexpr size_t kEventBytesMax = size_t{1} << 20;
  // event: its name, or empty. Return false to stop.
  using OnEvent = std::function<bool(std::string_view event, std::string_view data)>;
  explicit SseParser(OnEvent on_event) : on_event_(std::move(on_event)) {}

  // False: stopped, or an event too long.
  bool feed(std::string_view bytes);
  // The stream's end: an event without a blank line behind it counts as well.
  bool finish();

 private:
  bool line(std::string_view text);
  bool dispatch();
  OnEvent on_event_;
  std::string partial_, event_, data_;
  bool has_data_ = false, failed_ = false;
};

}  // namespace niche::evolve::proposer
