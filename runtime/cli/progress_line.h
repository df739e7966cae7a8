// Progress on stderr: one line that is renewed on a terminal; elsewhere (a file, a pipe) a line for each event, so that
// a log stays readable.
//
// Thread-safety: one caller at a time.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

namespace niche::cli {

class ProgressLine {
 public:
  explicit ProgressLine(bool terminal = ::isatty(STDERR_FILENO) == 1) : terminal_(terminal) {}
  // What the next text replaces.
  void show(const std::string& text) {
    std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", text.c_str());
    open_ = terminal_;
  }
  // What stays.
  void print(const std::string& text) {
    std::fprintf(stderr, open_ ? "\r\033[K%s\n" : "%s\n", text.c_str());
    open_ = false;
  }
  void end() {
    if (open_) std::fputc('\n', stderr);
    open_ = false;
  }

 private:
  const bool terminal_;
  bool open_ = false;
};

}  // namespace niche::cli
