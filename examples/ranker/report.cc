#include "examples/ranker/report.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "examples/ranker/report_page.h"

namespace ranker {
namespace {

using nlohmann::json;

json operator_json(const OperatorRow& o) {
  return {{"op", o.op},
          {"problem", o.problem},
          {"kernel", o.kernel},
          {"share_before", o.share_before},
          {"fallback", o.fallback},
          {"fallback_us", o.fallback_us},
          {"evolved_us", o.evolved_us},
          {"speedup", o.speedup},
          {"ci_low", o.ci_low},
          {"ci_high", o.ci_high},
          {"tried", o.tried},
          {"rejected", o.rejected},
          {"note", o.note}};
}

json report_json(const Report& r) {
  json j = {{"commit", r.commit},
            {"machine", r.machine},
            {"trace", r.trace},
            {"date", r.date},
            {"requests", r.requests},
            {"failed", r.failed},
            {"wrong", r.wrong},
            {"checked", r.checked},
            {"checked_evolved", r.checked_evolved},
            {"throughput_before_rps", r.throughput_before_rps},
            {"throughput_after_rps", r.throughput_after_rps},
            {"throughput_before_runs", r.throughput_before_runs},
            {"throughput_after_runs", r.throughput_after_runs},
            {"p50_before_ms", r.p50_before_ms},
            {"p50_during_ms", r.p50_during_ms},
            {"p50_after_ms", r.p50_after_ms},
            {"p99_before_ms", r.p99_before_ms},
            {"p99_during_ms", r.p99_during_ms},
            {"p99_after_ms", r.p99_after_ms},
            {"first_swap_s", r.first_swap_s},
            {"sessions", r.sessions},
            {"swaps", r.swaps},
            {"rollbacks", r.rollbacks},
            {"evolved_call_share", r.evolved_call_share},
            {"evolved_call_share_after_restart", r.evolved_call_share_after_restart},
            {"seconds", r.seconds}};
  if (const TuningCost& c = r.tuning_cost; c.quads > 0)
    j["tuning_cost"] = {{"quads", c.quads},
                        {"requests_off", c.requests_off},
                        {"requests_on", c.requests_on},
                        {"p50_off_ms", c.p50_off_ms},
                        {"p50_on_ms", c.p50_on_ms},
                        {"p99_off_ms", c.p99_off_ms},
                        {"p99_on_ms", c.p99_on_ms},
                        {"p50_ratio", c.p50_ratio},
                        {"p99_ratio", c.p99_ratio},
                        {"p99_ratio_low", c.p99_ratio_low},
                        {"p99_ratio_high", c.p99_ratio_high}};
  j["operators"] = json::array();
  for (const OperatorRow& o : r.operators) j["operators"].push_back(operator_json(o));
  j["samples"] = json::array();
  for (const Sample& s : r.samples)
    j["samples"].push_back({{"at_s", s.at_s},
                            {"requests_per_s", s.requests_per_s},
                            {"p50_ms", s.p50_ms},
                            {"p99_ms", s.p99_ms},
                            {"evolved_share", s.evolved_share},
                            {"sessions_running", s.sessions_running},
                            {"swaps", s.swaps}});
  j["events"] = json::array();
  for (const auto& [at, text] : r.events) j["events"].push_back({{"at_s", at}, {"text", text}});
  return j;
}

niche::dispatch::Status write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) return niche::dispatch::errno_status("write " + path.string());
  return {};
}

std::string format(const char* pattern, double v) {
  char buf[64];
  std::snprintf(buf, sizeof buf, pattern, v);
  return buf;
}

std::string padded(std::string text, size_t width, bool right = false) {
  if (text.size() > width) text = text.substr(0, width - 1) + "~";
  const std::string fill(width - text.size(), ' ');
  return right ? fill + text : text + fill;
}

}  // namespace

std::string to_json(const Report& report) { return report_json(report).dump(2); }

std::string to_table(const Report& r) {
  std::string t;
  t += padded("operator", 20) + padded("problem", 20) + padded("best library form", 24) +
       padded("share", 7, true) + padded("library us", 12, true) + padded("evolved us", 12, true) +
       padded("speed-up", 10, true) + padded("95% interval", 15, true) + padded("tried", 7, true) + "\n";
  for (const OperatorRow& o : r.operators) {
    t += padded(o.op, 20) + padded(o.problem, 20) + padded(o.fallback, 24) +
         padded(format("%.1f%%", o.share_before * 100), 7, true) +
         padded(format("%.1f", o.fallback_us), 12, true);
    t += o.kernel.empty()
             ? padded("-", 12, true) + padded("1.00x", 10, true) + padded("on the library", 15, true)
             : padded(format("%.1f", o.evolved_us), 12, true) + padded(format("%.2fx", o.speedup), 10, true) +
                   padded(format("%.2f", o.ci_low) + "-" + format("%.2f", o.ci_high), 15, true);
    t += padded(std::to_string(o.tried), 7, true) + "\n";
  }
  const auto row = [&](const char* name, const char* pattern, double before, double during, double after) {
    t += padded(name, 28) + padded(format(pattern, before), 12, true) +
         padded(during > 0 ? format(pattern, during) : "", 12, true) +
         padded(format(pattern, after), 12, true) +
         padded(before > 0 ? format("%.2fx", after / before) : "", 12, true) + "\n";
  };
  t += "\n" + padded("", 28) + padded("before", 12, true) + padded("during", 12, true) +
       padded("after", 12, true) + padded("after/before", 12, true) + "\n";
  row("throughput, requests/s", "%.1f", r.throughput_before_rps, 0, r.throughput_after_rps);
  row("p50, ms", "%.2f", r.p50_before_ms, r.p50_during_ms, r.p50_after_ms);
  row("p99, ms", "%.2f", r.p99_before_ms, r.p99_during_ms, r.p99_after_ms);
  t += "\nrequests " + std::to_string(r.requests) + ", failed " + std::to_string(r.failed) + ", checked " +
       std::to_string(r.checked) + " (" + std::to_string(r.checked_evolved) + " on evolved kernels), wrong " +
       std::to_string(r.wrong) + "; sessions " + std::to_string(r.sessions) + ", swaps " +
       std::to_string(r.swaps) + ", rollbacks " + std::to_string(r.rollbacks) +
       "\nfirst evolved kernel live " + format("%.1f", r.first_swap_s) +
       " s after its operator became hot; calls on evolved kernels " +
       format("%.1f%%", r.evolved_call_share * 100) + ", after a restart " +
       format("%.1f%%", r.evolved_call_share_after_restart * 100) + " from the first requests on\n";
  if (const TuningCost& c = r.tuning_cost; c.quads > 0)
    t += "the same requests with sessions paused and not, " + std::to_string(c.quads) + " quads: p50 " +
         format("%.2f", c.p50_off_ms) + " and " + format("%.2f ms (", c.p50_on_ms) +
         format("%.3f), p99 ", c.p50_ratio) + format("%.2f", c.p99_off_ms) + " and " +
         format("%.2f ms (", c.p99_on_ms) + format("%.3f [", c.p99_ratio) +
         format("%.3f, ", c.p99_ratio_low) + format("%.3f])\n", c.p99_ratio_high);
  return t;
}

std::string to_html(const Report& report) {
  std::string page(kReportPage);
  // "</" would end the script element early if a name held it.
  std::string data = report_json(report).dump();
  for (size_t at = 0; (at = data.find("</", at)) != std::string::npos; at += 3) data.insert(at + 1, "\\");
  const std::string mark = "/*DATA*/null";
  return page.replace(page.find(mark), mark.size(), data);
}

niche::dispatch::Status write_report(const Report& report, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return niche::dispatch::io_error("create " + directory + ": " + error.message());
  NICHE_RETURN_IF_ERROR(write_file(std::filesystem::path(directory) / "report.json", to_json(report)));
  return write_file(std::filesystem::path(directory) / "report.html", to_html(report));
}

}  // namespace ranker
