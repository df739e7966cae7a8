#include "examples/ranker/operator_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "examples/ranker/status_summary.h"

namespace ranker {
namespace {

using nlohmann::json;

std::string axes_text(const json& axes) {
  std::string text;
  for (const json& v : axes) text += (text.empty() ? "" : "x") + std::to_string(v.get<int64_t>());
  return text;
}

// The point of a kernel's Verdict that stands for its niche: the one with the median speed-up.
const json* typical_point(const json& kernel) {
  if (!kernel.contains("points")) return nullptr;
  std::vector<const json*> points;
  for (const json& p : kernel.at("points")) points.push_back(&p);
  std::sort(points.begin(), points.end(),
            [](const json* a, const json* b) { return a->at("speedup") < b->at("speedup"); });
  return points.empty() ? nullptr : points[points.size() / 2];
}

OperatorRow evolved_row(const json& definition, const json& kernel, double share) {
  OperatorRow row;
  row.op = definition.at("op");
  row.share_before = share;
  row.kernel = kernel.at("name");
  row.fallback = kernel.at("fallback");
  if (const json* p = typical_point(kernel)) {
    row.problem = axes_text(p->at("axes"));
    row.fallback = p->at("fallback");
    row.fallback_us = p->at("fallback_ns").get<double>() / 1e3;
    row.evolved_us = p->at("kernel_ns").get<double>() / 1e3;
    row.speedup = p->at("speedup");
    row.ci_low = p->at("ci_low");
    row.ci_high = p->at("ci_high");
  } else {
    row.fallback_us = kernel.at("fallback_ns").get<double>() / 1e3;
    row.evolved_us = kernel.at("kernel_ns").get<double>() / 1e3;
    row.speedup = row.fallback_us / row.evolved_us;
    row.ci_low = row.ci_high = row.speedup;
  }
  return row;
}

}  // namespace

niche::dispatch::Status fill_from_status(const std::string& status_json, const std::string& profile_json,
                                         Report* report) {
  const auto summary = summarize_status(status_json);
  if (!summary.ok()) return summary.status();
  report->sessions = summary->sessions;
  report->swaps = summary->swaps;
  report->rollbacks = summary->rollbacks;
  report->first_swap_s = summary->first_swap_s;
  try {
    const json status = json::parse(status_json), profile = json::parse(profile_json);
    const double total = profile.at("total");
    const json& all = status.at("definitions");
    const auto on_device = [](const json& d) { return d.contains("device"); };
    const bool device = std::any_of(all.begin(), all.end(), on_device);
    for (const json& d : all) {
      if (on_device(d) != device) continue;  // the host's, which serves nothing
      const std::string op = d.at("op");
      const double share = profile.at("seconds").value(op, 0.0) / total;
      std::map<std::string, int> rejected;
      if (d.contains("rejected"))
        for (const auto& [gate, n] : d.at("rejected").items()) rejected[gate] = n;
      std::vector<OperatorRow> rows;
      for (const json& k : d.at("kernels"))
        if (k.at("state") == "incumbent" && k.at("calls").get<int64_t>() > 0)
          rows.push_back(evolved_row(d, k, share));
      if (rows.empty()) {
        OperatorRow row;
        row.op = op;
        row.share_before = share;
        row.note = d.at("tried").get<int>() > 0
                       ? "on the library: none of " + std::to_string(d.at("tried").get<int>()) +
                             " candidates was proven faster"
                       : "on the library: no session was worth it";
        rows.push_back(row);
      }
      for (OperatorRow& row : rows) {
        row.tried = d.at("tried");
        row.rejected = rejected;
        report->operators.push_back(std::move(row));
      }
    }
  } catch (const json::exception& e) {
    return niche::dispatch::corrupt(std::string("status or profile JSON: ") + e.what());
  }
  std::stable_sort(
      report->operators.begin(), report->operators.end(),
      [](const OperatorRow& a, const OperatorRow& b) { return a.share_before > b.share_before; });
  return {};
}

}  // namespace ranker
