#include "evolve/proposer/edits.h"

#include <algorithm>
#include <optional>

namespace niche::evolve::proposer {
namespace {

using dispatch::invalid;
using dispatch::Result;
using dispatch::Status;

constexpr size_t kEditsMax = 64;
constexpr size_t kLikenessBytesMax = 8 << 10;
constexpr double kLikeness = 0.95;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Appended: g++ 12 at -O3 takes "edit " + a temporary for an overlap (-Wrestrict, GCC bug 105651).
Status refused(size_t number, std::string_view why) {
  std::string text("edit ");
  text.append(std::to_string(number)).append(why);
  return invalid(text);
}

bool blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// A line without spacing at its ends, runs of it made one blank.
std::string squeezed(std::string_view line) {
  std::string out;
  for (char c : line) {
    if (!blank(c))
      out += c;
    else if (!out.empty() && out.back() != ' ')
      out += ' ';
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

bool marker(std::string_view line, char c, std::string_view word) {
  size_t n = 0;
  while (n < line.size() && line[n] == c) ++n;
  return n >= 5 && n <= 9 && squeezed(line.substr(n)) == word;
}

size_t indent_of(std::string_view line) {
  size_t n = 0;
  while (n < line.size() && blank(line[n])) ++n;
  return n;
}

// Levenshtein distance, given up (limit + 1) where it must exceed `limit`.
size_t distance(std::string_view a, std::string_view b, size_t limit) {
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() > limit) return limit + 1;
  std::vector<size_t> row(a.size() + 1);
  for (size_t i = 0; i <= a.size(); ++i) row[i] = i;
  for (size_t j = 1; j <= b.size(); ++j) {
    size_t diagonal = row[0], best = row[0] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
      const size_t above = row[i];
      row[i] = std::min({above + 1, row[i - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
      best = std::min(best, row[i]);
    }
    if (best > limit) return limit + 1;
  }
  return row[a.size()];
}

double likeness(const std::string& a, const std::string& b, double least) {
  const size_t longest = std::max<size_t>(1, std::max(a.size(), b.size()));
  const auto limit = static_cast<size_t>((1 - least) * static_cast<double>(longest));
  return 1 - static_cast<double>(distance(a, b, limit)) / static_cast<double>(longest);
}

struct Place {
  size_t first, count;  // lines of the program
};

class Program {
 public:
  explicit Program(std::string text) : text_(std::move(text)) {}
  const std::string& text() const { return text_; }

  Status apply(const Edit& e, size_t number) {
    if (squeezed(e.search).find_first_not_of('\n') == std::string::npos)
      return refused(number, ": SEARCH is empty");
    const size_t at = text_.find(e.search);
    if (at != std::string::npos && line_start(at)) {
      if (text_.find(e.search, at + 1) != std::string::npos) return twice(number);
      text_.replace(at, e.search.size(), e.replace);
      return {};
    }
    const auto program = lines_of(text_), search = lines_of(e.search);
    auto place = find(program, search, number);
    if (!place.ok()) return place.status();
    replace_lines(program, search, *place, e.replace);
    return {};
  }

 private:
  bool line_start(size_t at) const { return at == 0 || text_[at - 1] == '\n'; }
  static Status twice(size_t number) {
    return refused(number, ": its SEARCH stands in the program more than once; take more lines into it");
  }

  static Result<Place> find(const std::vector<std::string_view>& program,
                            const std::vector<std::string_view>& search, size_t number) {
    std::vector<std::string> p, s;
    for (auto line : program) p.push_back(squeezed(line));
    for (auto line : search) s.push_back(squeezed(line));
    std::vector<Place> equal, alike;
    double best = 0;
    size_t closest = 0;
    std::string joined;
    for (const std::string& line : s) joined += line + '\n';
    for (size_t at = 0; at + s.size() <= p.size(); ++at) {
      size_t same = 0;
      std::string window;
      for (size_t i = 0; i < s.size(); ++i) same += p[at + i] == s[i], window += p[at + i] + '\n';
      if (same == s.size()) equal.push_back({at, s.size()});
      const double share = static_cast<double>(same) / static_cast<double>(s.size());
      if (share > best) best = share, closest = at;
      // Cheap things first: half of the lines must agree before letters are counted.
      if ((s.size() > 2 && 2 * same < s.size()) || joined.size() > kLikenessBytesMax) continue;
      if (likeness(joined, window, kLikeness) >= kLikeness) alike.push_back({at, s.size()});
    }
    if (equal.size() == 1) return equal.front();
    if (equal.size() > 1) return twice(number);
    if (alike.size() == 1) return alike.front();
    if (alike.size() > 1) return twice(number);
    std::string message = ": its SEARCH is not in the program";
    if (best > 0) {
      message += "; the closest lines there are:";
      for (size_t i = closest; i < std::min(closest + std::min<size_t>(s.size(), 6), program.size()); ++i)
        message.append("\n").append(program[i]);
    }
    return refused(number, message);
  }

  void replace_lines(const std::vector<std::string_view>& program,
                     const std::vector<std::string_view>& search, const Place& place,
                     const std::string& replacement) {
    const size_t was = indent_of(search.front()), is = indent_of(program[place.first]);
    std::string out;
    for (size_t i = 0; i < place.first; ++i) out.append(program[i]) += '\n';
    for (std::string_view line : lines_of(replacement)) {
      if (is > was)
        out.append(line.empty() ? 0 : is - was, ' ').append(line);
      else
        out.append(line.substr(std::min(was - is, indent_of(line))));
      out += '\n';
    }
    for (size_t i = place.first + place.count; i < program.size(); ++i) out.append(program[i]) += '\n';
    text_ = std::move(out);
  }

  std::string text_;
};

}  // namespace

Result<std::vector<Edit>> parse_edits(std::string_view text) {
  std::vector<Edit> edits;
  enum class In { kNothing, kSearch, kReplace } in = In::kNothing;
  for (std::string_view line : lines_of(text)) {
    if (in == In::kNothing && marker(line, '<', "SEARCH")) {
      if (edits.size() == kEditsMax) return invalid("more than 64 edits");
      edits.emplace_back();
      in = In::kSearch;
    } else if (in == In::kSearch && marker(line, '=', "")) {
      in = In::kReplace;
    } else if (in == In::kReplace && marker(line, '>', "REPLACE")) {
      in = In::kNothing;
    } else if (in != In::kNothing) {
      (in == In::kSearch ? edits.back().search : edits.back().replace).append(line) += '\n';
    }
  }
  if (in != In::kNothing) return refused(edits.size(), " is not closed (the answer was cut?)");
  return edits;
}

Result<std::string> apply_edits(std::string_view program, const std::vector<Edit>& edits) {
  if (edits.empty()) return invalid("no edit to apply");
  Program changed{std::string(program)};
  for (size_t i = 0; i < edits.size(); ++i) NICHE_RETURN_IF_ERROR(changed.apply(edits[i], i + 1));
  if (changed.text() == program) return invalid("the edits leave the program as it was");
  return changed.text();
}

}  // namespace niche::evolve::proposer
