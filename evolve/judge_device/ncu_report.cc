#include "evolve/judge_device/ncu_report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

namespace niche::evolve {
namespace {

using dispatch::Result;

struct Metric {
  double value = 0;
  std::string unit;
};
using Metrics = std::map<std::string, Metric, std::less<>>;

// What a counter is called: the first name that is there. All but the first are percentages.
struct Named {
  double ProfilerCounters::*field;
  std::vector<const char*> names;
};
const std::vector<Named>& shares() {
  static const std::vector<Named> list = {
      {&ProfilerCounters::dram,
       {"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed"}},
      {&ProfilerCounters::l2,
       {"lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"}},
      {&ProfilerCounters::l1, {"l1tex__throughput.avg.pct_of_peak_sustained_active"}},
      {&ProfilerCounters::tensor,
       {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"}},
      {&ProfilerCounters::issue,
       {"smsp__issue_active.avg.pct_of_peak_sustained_active",
        "sm__inst_issued.avg.pct_of_peak_sustained_active"}},
      {&ProfilerCounters::occupancy, {"sm__warps_active.avg.pct_of_peak_sustained_active"}},
  };
  return list;
}
// Bytes used of each sector (.ratio), and the most there can be (.max_rate).
constexpr std::pair<double ProfilerCounters::*, const char*> kSectors[] = {
    {&ProfilerCounters::load_sectors, "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld"},
    {&ProfilerCounters::store_sectors, "smsp__sass_average_data_bytes_per_sector_mem_global_op_st"}};
constexpr std::pair<const char*, const char*> kLimits[] = {
    {"registers", "launch__occupancy_limit_registers"},
    {"shared memory", "launch__occupancy_limit_shared_mem"},
    {"threads", "launch__occupancy_limit_warps"},
    {"blocks", "launch__occupancy_limit_blocks"}};
constexpr std::string_view kTime = "gpu__time_duration.sum";
constexpr std::string_view kStall = "smsp__average_warps_issue_stalled_",
                           kStallEnd = "_per_issue_active.ratio";
constexpr size_t kStallsMax = 5;
constexpr size_t kTailBytes = 300;

double microseconds(const Metric& m) {
  const char unit = m.unit.empty() ? 'n' : m.unit[0];
  return m.value * (unit == 'u' ? 1 : unit == 'm' ? 1e3 : unit == 's' ? 1e6 : 1e-3);
}

// The fields of one line: quoted, with doubled quotes inside.
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"')
      fields.back() += '"', ++i;
    else if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      fields.emplace_back();
    else if (c != '\r')
      fields.back() += c;
  }
  return fields;
}

bool number(std::string text, double* value) {
  std::erase(text, ',');  // of thousands
  char* end = nullptr;
  *value = std::strtod(text.c_str(), &end);
  return !text.empty() && text.find_first_not_of("0123456789.+-eE") == std::string::npos && *end == '\0' &&
         std::isfinite(*value);
}

dispatch::Status cut_off(const std::string& where) {
  return dispatch::corrupt("ncu's report is cut off: " + where);
}

size_t column(const std::vector<std::string>& head, std::string_view name) {
  return static_cast<size_t>(std::find(head.begin(), head.end(), name) - head.begin());
}
std::string at(const std::vector<std::string>& row, size_t i) {
  return i < row.size() ? row[i] : std::string();
}

ProfilerCounters counters_of(const Metrics& metrics) {
  ProfilerCounters c;
  if (const auto time = metrics.find(kTime); time != metrics.end()) c.us = microseconds(time->second);
  for (const Named& n : shares())
    for (const char* name : n.names)
      if (const auto found = metrics.find(std::string_view(name)); found != metrics.end()) {
        c.*n.field = found->second.value / 100;
        break;
      }
  for (const auto& [field, name] : kSectors) {
    const auto used = metrics.find(std::string(name) + ".ratio"),
               most = metrics.find(std::string(name) + ".max_rate");
    if (used != metrics.end() && most != metrics.end() && used->second.value > 0 && most->second.value > 0)
      c.*field = used->second.value / most->second.value;
  }
  double least = 0;
  for (const auto& [name, metric] : kLimits)
    if (const auto found = metrics.find(std::string_view(metric));
        found != metrics.end() && (c.occupancy_limiter.empty() || found->second.value < least))
      c.occupancy_limiter = name, least = found->second.value;
  double waits = 0;
  for (const auto& [name, m] : metrics) {
    if (!name.starts_with(kStall) || !name.ends_with(kStallEnd) || m.value <= 0) continue;
    const std::string what = name.substr(kStall.size(), name.size() - kStall.size() - kStallEnd.size());
    if (what == "selected" || what == "not_selected") continue;  // those warps did not wait
    c.stalls.emplace_back(what, m.value);
    waits += m.value;
  }
  for (auto& [name, v] : c.stalls) v /= waits;
  std::stable_sort(c.stalls.begin(), c.stalls.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (c.stalls.size() > kStallsMax) c.stalls.resize(kStallsMax);
  return c;
}

}  // namespace

Result<std::vector<ProfiledLaunch>> read_ncu_report(std::string_view text) {
  std::vector<std::vector<std::string>> rows;
  for (size_t from = 0; from < text.size();) {
    const size_t end = std::min(text.find('\n', from), text.size());
    const std::string_view line = text.substr(from, end - from);
    if (line.starts_with("\"ID\"") || (!rows.empty() && line.starts_with('"'))) {
      if (std::count(line.begin(), line.end(), '"') % 2 != 0)
        return cut_off("its line " + std::to_string(rows.size() + 1) + " ends within a value");
      rows.push_back(fields_of(line));
      if (rows.back().size() != rows.front().size())
        return cut_off("its line " + std::to_string(rows.size()) + " has " +
                       std::to_string(rows.back().size()) + " of " + std::to_string(rows.front().size()) +
                       " values");
    }
    from = end + 1;
  }
  if (rows.empty()) {
    std::string tail(text.substr(text.size() - std::min(text.size(), kTailBytes)));
    while (!tail.empty() && (tail.back() == '\n' || tail.back() == '\r')) tail.pop_back();
    return dispatch::corrupt("no line that begins with \"ID\": not ncu's CSV, or it failed: " + tail);
  }
  const std::vector<std::string> head = std::move(rows.front());
  rows.erase(rows.begin());
  const size_t kernel = column(head, "Kernel Name"), name = column(head, "Metric Name");
  if (kernel == head.size()) return cut_off("its head names no kernel");
  std::vector<std::pair<std::string, std::pair<std::string, Metrics>>> launches;  // by id: kernel and metrics
  double value = 0;
  if (name < head.size()) {
    const size_t number_at = column(head, "Metric Value"), unit = column(head, "Metric Unit");
    if (number_at == head.size()) return cut_off("its head has no values");
    for (const auto& row : rows) {
      if (launches.empty() || launches.back().first != at(row, 0))
        launches.push_back({at(row, 0), {at(row, kernel), {}}});
      if (number(at(row, number_at), &value))
        launches.back().second.second[at(row, name)] = {value, at(row, unit)};
    }
  } else {
    std::vector<std::string> units;
    if (!rows.empty() && at(rows.front(), 0).empty()) units = rows.front(), rows.erase(rows.begin());
    for (const auto& row : rows) {
      Metrics metrics;
      for (size_t i = 0; i < head.size(); ++i)
        if (head[i].find("__") != std::string::npos && number(at(row, i), &value))
          metrics[head[i]] = {value, at(units, i)};
      launches.push_back({at(row, 0), {at(row, kernel), std::move(metrics)}});
    }
  }
  if (launches.empty()) return cut_off("no launch follows its head");
  std::vector<ProfiledLaunch> found;
  for (const auto& [id, launch] : launches) found.push_back({launch.first, counters_of(launch.second)});
  return found;
}

}  // namespace niche::evolve
