#include "evolve/proposer/sse.h"

namespace niche::evolve::proposer {

bool SseParser::feed(std::string_view bytes) {
  while (!failed_ && !bytes.empty()) {
    const size_t eol = bytes.find('\n');
    partial_.append(bytes.substr(0, eol));
    if (partial_.size() + data_.size() > kEventBytesMax) failed_ = true;
    if (eol == std::string_view::npos) break;
    bytes.remove_prefix(eol + 1);
    if (!partial_.empty() && partial_.back() == '\r') partial_.pop_back();
    if (!failed_ && !line(partial_)) failed_ = true;
    partial_.clear();
  }
  return !failed_;
}

bool SseParser::finish() {
  if (!failed_ && !partial_.empty() && !line(partial_)) failed_ = true;
  partial_.clear();
  if (!failed_ && !dispatch()) failed_ = true;
  return !failed_;
}

bool SseParser::line(std::string_view text) {
  if (text.empty()) return dispatch();
  const size_t colon = text.find(':');
  const std::string_view field = text.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  if (field == "event") {
    event_ = value;
  } else if (field == "data") {
    if (has_data_) data_ += '\n';
    data_.append(value);
    has_data_ = true;
  }
  return true;
}

bool SseParser::dispatch() {
  const bool go_on = !has_data_ || on_event_(event_, data_);
  event_.clear();
  data_.clear();
  has_data_ = false;
  return go_on;
}

}  // namespace niche::evolve::proposer
