#include "runtime/cli/replay/trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>

namespace niche::replay {
namespace {

using dispatch::corrupt;
using dispatch::Result;

// Days since 1970-01-01 of a proleptic Gregorian date (H. Hinnant, "chrono-compatible low-level date
// algorithms").
int64_t days_from_civil(int64_t y, int64_t m, int64_t d) {
  y -= m <= 2;
  const int64_t era = (y >= 0 ? y : y - 399) / 400;
  const int64_t yoe = y - era * 400;
  const int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
  const int64_t doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
  return era * 146097 + doe - 719468;
}

// "2023-11-16 18:15:46.6805900" to seconds; the fraction may have any number of digits or be absent.
std::optional<double> parse_time(const std::string& text) {
  int y = 0, mo = 0, d = 0, h = 0, mi = 0;
  double s = 0;
  int used = 0;
  if (std::sscanf(text.c_str(), "%4d-%2d-%2d%*1[ T]%2d:%2d:%lf%n", &y, &mo, &d, &h, &mi, &s, &used) != 6)
    return {};
  if (used != static_cast<int>(text.size()) || mo < 1 || mo > 12 || d < 1 || d > 31 || h > 23 || mi > 59 ||
      !(s >= 0 && s < 61))
    return {};
  return static_cast<double>(days_from_civil(y, mo, d)) * 86400.0 + h * 3600.0 + mi * 60.0 + s;
}

std::optional<int> parse_count(std::string_view text) {
  int v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc() || end != text.data() + text.size() || v < 0) return {};
  return v;
}

}  // namespace

Result<std::vector<TraceRow>> read_trace(const std::string& path, size_t rows_max) {
  std::ifstream in(path);
  if (!in) return dispatch::errno_status("open trace " + path);
  std::vector<TraceRow> rows;
  std::string line;
  double first = 0, last = 0;
  for (size_t number = 1; rows.size() < rows_max && std::getline(in, line); ++number) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || (number == 1 && line.rfind("TIMESTAMP", 0) == 0)) continue;
    const std::string where = "trace " + path + ", line " + std::to_string(number) + ": ";
    const size_t a = line.find(','), b = line.find(',', a == std::string::npos ? a : a + 1);
    if (b == std::string::npos) return corrupt(where + "expected TIMESTAMP,ContextTokens,GeneratedTokens");
    const auto time = parse_time(line.substr(0, a));
    if (!time)
      return corrupt(where + "TIMESTAMP '" + line.substr(0, a) + "' is not YYYY-MM-DD HH:MM:SS[.fraction]");
    const auto context = parse_count(std::string_view(line).substr(a + 1, b - a - 1));
    const auto generated = parse_count(std::string_view(line).substr(b + 1));
    if (!context || !generated) return corrupt(where + "token counts must be whole numbers >= 0");
    if (rows.empty()) first = last = *time;
    if (*time < last) return corrupt(where + "earlier than the row before it");
    last = *time;
    rows.push_back({*time - first, *context, *generated});
  }
  if (rows.size() < 2) return corrupt("trace " + path + ": fewer than two rows");
  return rows;
}

std::vector<RequestSpec> to_requests(const std::vector<TraceRow>& rows, const SizeMap& map, double rate_per_s,
                                     uint64_t first_id) {
  std::vector<RequestSpec> requests;
  requests.reserve(rows.size());
  const double span = std::max(rows.back().arrival_s - rows.front().arrival_s, 1e-9);
  const double scale = static_cast<double>(rows.size() - 1) / rate_per_s / span;
  for (const TraceRow& r : rows) {
    RequestSpec q;
    q.id = first_id + requests.size();
    q.arrival_s = (r.arrival_s - rows.front().arrival_s) * scale;
    q.batch =
        std::clamp(1 + static_cast<int>(r.generated_tokens / map.tokens_per_candidate), 1, map.batch_max);
    q.length = std::clamp(static_cast<int>(std::lround(r.context_tokens / map.tokens_per_event)),
                          map.length_min, map.length_max);
    requests.push_back(q);
  }
  return requests;
}

}  // namespace niche::replay
