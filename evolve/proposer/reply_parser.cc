#include "evolve/proposer/reply_parser.h"

#include <algorithm>

#include "evolve/proposer/edits.h"

namespace niche::evolve::proposer {
namespace {

using dispatch::invalid;
using dispatch::Result;
using dispatch::Status;

constexpr size_t kProgramsMax = 8;
constexpr std::string_view kEntry = "extern \"C\"";

std::string_view trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(" \t\r\n") - first + 1);
}

// What stands between ``` lines, if the text is one fence; else the text.
std::string_view unfenced(std::string_view s) {
  s = trimmed(s);
  if (!s.starts_with("```")) return s;
  const size_t eol = s.find('\n');
  if (eol == std::string_view::npos) return s;
  std::string_view body = s.substr(eol + 1);
  const size_t end = body.rfind("```");
  return end == std::string_view::npos ? body : body.substr(0, end);
}

struct Section {
  std::string_view tag, body;
};

// <TAG>body</TAG>, tags at the beginning of a line, in order. kInvalid: one that is not closed.
Result<std::vector<Section>> sections_of(std::string_view text) {
  std::vector<Section> sections;
  for (size_t at = 0; at < text.size();) {
    bool found = false;
    for (std::string_view tag : {"NAME", "DESCRIPTION", "CODE", "DIFF"}) {
      // Appended: g++ 12 at -O3 takes "<" + a temporary for an overlap (-Wrestrict, GCC bug 105651).
      const std::string open = std::string("<").append(tag).append(">");
      const std::string close = std::string("</").append(tag).append(">");
      if (!text.substr(at).starts_with(open)) continue;
      const size_t from = at + open.size(), end = text.find(close, from);
      if (end == std::string_view::npos)
        return invalid("section " + open + " is not closed by " + close + " (the answer was cut?)");
      sections.push_back({tag, text.substr(from, end - from)});
      at = end + close.size();
      found = true;
      break;
    }
    if (found) continue;
    const size_t next = text.find('<', at + 1);
    at = next == std::string_view::npos ? text.size() : next;
  }
  return sections;
}

Result<std::string> changed(std::string_view diff, std::string_view parent) {
  if (parent.empty()) return invalid("edits without a program to edit: give the whole program in <CODE>");
  auto edits = parse_edits(diff);
  if (!edits.ok()) return edits.status();
  return apply_edits(parent, *edits);
}

Status check(const std::string& code) {
  if (code.size() > kProgramBytesMax)
    return invalid("a program of " + std::to_string(code.size()) + " bytes, 64 KiB is the limit");
  if (code.find(kEntry) == std::string::npos)
    return invalid(
        "a program without an entry: `extern \"C\" void NAME(const NicheKernelArgs*, long, long) noexcept`");
  return {};
}

// The last complete fence that holds an entry; empty: none.
std::string_view last_fence(std::string_view text) {
  std::string_view found;
  for (size_t at = text.find("```"); at != std::string_view::npos;) {
    const size_t eol = text.find('\n', at);
    if (eol == std::string_view::npos) break;
    const size_t end = text.find("\n```", eol);
    if (end == std::string_view::npos) break;
    const std::string_view body = text.substr(eol + 1, end + 1 - eol - 1);
    if (body.find(kEntry) != std::string_view::npos) found = body;
    at = text.find("```", end + 4);
  }
  return found;
}

}  // namespace

Result<std::vector<Program>> parse_reply(std::string_view text, std::string_view parent) {
  auto sections = sections_of(text);
  if (!sections.ok()) return sections.status();
  std::vector<Program> programs;
  Status trouble;
  const auto take = [&](Program p, Result<std::string> code) {
    Status s = code.ok() ? check(*code) : code.status();
    if (!s.ok()) {
      if (trouble.ok()) trouble = s;
      return;
    }
    p.code = std::move(*code);
    if (!p.code.empty() && p.code.back() != '\n') p.code += '\n';
    if (programs.size() < kProgramsMax) programs.push_back(std::move(p));
  };
  Program head;
  for (const Section& s : *sections) {
    if (s.tag == "NAME") {
      head = {std::string(trimmed(s.body)).substr(0, 80), "", ""};
    } else if (s.tag == "DESCRIPTION") {
      head.description = std::string(trimmed(s.body)).substr(0, 2000);
    } else {
      take(head,
           s.tag == "CODE" ? Result<std::string>(std::string(unfenced(s.body))) : changed(s.body, parent));
      head = {};
    }
  }
  if (programs.empty() && trouble.ok()) {
    if (!parent.empty() && text.find("<<<<< SEARCH") != std::string_view::npos)
      take({}, changed(text, parent));
    else if (const auto fence = last_fence(text); !fence.empty())
      take({}, std::string(fence));
    else if (text.find("```") == std::string_view::npos && text.find(kEntry) != std::string_view::npos)
      take({}, std::string(text));
    else
      trouble =
          invalid("no program in the answer: neither <CODE> nor <DIFF>, nor a complete fence with an entry");
  }
  if (programs.empty()) return trouble;
  return programs;
}

}  // namespace niche::evolve::proposer
