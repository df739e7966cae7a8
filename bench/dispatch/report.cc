#include "bench/dispatch/report.h"

#include <cmath>
#include <cstdio>
#include <set>

namespace niche::bench {
namespace {

constexpr uint32_t kRoutes = 1024;  // where everything is compared

class Report {
 public:
  explicit Report(const std::vector<Row>& rows) : rows_(rows) {}

  // NaN where it was not measured.
  Figures at(const std::string& subject, const std::string& name, int threads, uint32_t routes) const {
    for (const Row& r : rows_)
      if (r.subject == subject && r.name == name && r.threads == threads && r.routes == routes)
        return r.best();
    return {NAN, NAN, NAN, NAN};
  }
  Figures here(const std::string& subject, const std::string& name) const {
    return at(subject, name, 1, kRoutes);
  }

  void aims() const {
    const Figures hit = here("niche", "hit"), bare = here("bare", "hit"), quiet = hit,
                  busy = here("niche", "hit_publishing");
    const double empty = here("benchmark", "empty").mean;
    const struct {
      const char* what;
      double value;
      const char* unit;
      double aim;
    } lines[] = {
        {"hit, random order / bare probe", hit.mean / bare.mean, "x", 1.25},
        {"the same by p50 of 32 calls", hit.p50 / bare.p50, "x", 1.25},
        {"site that repeats", here("niche", "hit_repeat").mean - empty, "ns", 4},
        {"miss / hit", here("niche", "miss").mean / hit.mean, "x", 2},
        {"1,000 publications/s, p50 / quiet", busy.p50 / quiet.p50, "x", 1.3},
        {"1,000 publications/s, p99.9 / quiet", busy.p999 / quiet.p999, "x", 3},
        {"RequestScope, open and close", here("niche", "request_scope").mean - empty, "ns", 5},
        {"choosing an arm", here("niche", "assign").mean - empty, "ns", 3},
        {"publish one change into 10,000", at("niche", "publish", 1, 10'000).p50 / 1000, "us", 20},
        {"publish one change into 100,000", at("niche", "publish", 1, 100'000).p50 / 1000, "us", 50},
    };
    std::printf("1 thread, 1,024 routes, of the least disturbed round    figure       aim\n");
    for (const auto& l : lines)
      if (std::isfinite(l.value))
        std::printf("  %-48s %8.2f %-2s %6.4g %-2s %s\n", l.what, l.value, l.unit, l.aim, l.unit,
                    l.value <= l.aim ? "" : "missed");
  }

  void rivals() const {
    const Figures ours = here("niche", "hit");
    if (!std::isfinite(ours.mean)) return;
    std::printf("\n%-19s %8s %8s %8s %8s %10s %10s %9s %9s\n", "ns a call, 1,024 routes", "hit", "x niche",
                "repeats", "misses", "2 threads", "4 threads", "publ. p50", "p99.9");
    for (const std::string& s : subjects()) {
      const Figures hit = here(s, "hit");
      if (!std::isfinite(hit.mean)) continue;
      std::printf("%-23s", s.c_str());
      cell(hit.mean, 8);
      cell(hit.mean / ours.mean, 8, 2);
      cell(here(s, "hit_repeat").mean, 8);
      cell(here(s, "miss").mean, 8);
      cell(at(s, "hit", 2, kRoutes).mean, 10);
      cell(at(s, "hit", 4, kRoutes).mean, 10);
      cell(here(s, "hit_publishing").p50, 9);
      cell(here(s, "hit_publishing").p999, 9);
      std::printf("\n");
    }
  }

  void growth() const {
    std::set<int> threads;
    std::set<uint32_t> routes;
    for (const Row& r : rows_)
      if (r.name == "hit") threads.insert(r.threads), routes.insert(r.routes);
    if (routes.size() < 2) return;
    std::printf("\nhits in random order, ns a call: p50 / p99.9 of 32\n%-12s %7s", "", "threads");
    for (const uint32_t n : routes) std::printf(" %10u routes", n);
    std::printf("\n");
    for (const char* s : {"niche", "bare"})
      for (const int t : threads) {
        std::printf("%-12s %7d", s, t);
        for (const uint32_t n : routes) {
          const Figures f = at(s, "hit", t, n);
          if (std::isfinite(f.p50))
            std::printf(" %8.1f /%7.1f", f.p50, f.p999);
          else
            std::printf(" %17s", "-");
        }
        std::printf("\n");
      }
  }

 private:
  std::vector<std::string> subjects() const {
    std::vector<std::string> all;
    std::set<std::string> seen;
    for (const Row& r : rows_)
      if (r.name == "hit" && seen.insert(r.subject).second) all.push_back(r.subject);
    return all;
  }
  static void cell(double v, int width, int digits = 1) {
    if (std::isfinite(v))
      std::printf(" %*.*f", width, digits, v);
    else
      std::printf(" %*s", width, "-");
  }

  const std::vector<Row>& rows_;
};

}  // namespace

void print_report(const std::vector<Row>& rows) {
  const Report r(rows);
  r.aims();
  r.rivals();
  r.growth();
}

void print_rows(const std::vector<Row>& rows) {
  std::printf("%-18s %-15s %7s %8s %10s %10s %10s %10s %10s\n", "subject", "case", "threads", "routes",
              "p50 ns", "p99 ns", "p99.9 ns", "ns/op", "median");
  for (const Row& r : rows) {
    const Figures f = r.best();
    std::printf("%-18s %-15s %7d %8u %10.1f %10.1f %10.1f %10.1f %10.1f\n", r.subject.c_str(), r.name.c_str(),
                r.threads, r.routes, f.p50, f.p99, f.p999, f.mean, r.median_mean());
  }
}

}  // namespace niche::bench
