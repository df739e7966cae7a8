// `niche cache list|verify|export|import|prune`.
#include <cstdio>

#include "kernels_cache/maintenance.h"
#include "runtime/cli/common.h"

namespace niche::cli {
namespace {

using kernels_cache::Access;
using kernels_cache::KernelCache;

int list(const CacheFlags& flags) {
  auto cache = flags.open(Access::kReadOnly);
  if (!cache.ok()) return fail(cache.status());
  std::printf("%-9s %7s %12s %9s  %s\n", "state", "gain", "served", "bytes", "kernel");
  for (const KernelCache::EntryInfo& e : (*cache)->entries()) {
    const auto record = (*cache)->load(e.id, kernels_cache::Part::kRecord);
    const char* state = e.standing != kernels_cache::StandingState::kClear
                            ? kernels_cache::standing_name(e.standing)
                        : e.proven ? "proven"
                                   : "new";
    std::printf("%-9s %6.2fx %12lld %9lld  %s  [%s] %s\n", state, e.speedup,
                static_cast<long long>(e.served_calls), static_cast<long long>(e.bytes),
                record ? record->name.c_str() : "(unreadable)", record ? record->definition.c_str() : "",
                e.id.hex().c_str());
  }
  for (const kernels_cache::Standing& s : (*cache)->standings().list())
    std::printf("%-9s %s [%s]: %s\n", kernels_cache::standing_name(s.state), s.kernel.c_str(),
                s.definition.c_str(), s.reason.c_str());
  return 0;
}

int verify(const CacheFlags& flags, bool remove_bad) {
  auto cache = remove_bad ? flags.open_existing() : flags.open(Access::kReadOnly);
  if (!cache.ok()) return fail(cache.status());
  auto report = kernels_cache::verify_entries(**cache, remove_bad);
  if (!report.ok()) return fail(report.status());
  for (const auto& bad : report->bad)
    std::printf("%s: %s: %s\n", bad.file.c_str(), kernels_cache::miss_reason_name(bad.reason),
                bad.text.c_str());
  std::printf("%d good, %zu bad\n", report->good, report->bad.size());
  return report->bad.empty() ? 0 : 1;
}

int transfer(const dispatch::Result<kernels_cache::TransferReport>& report, const char* verb) {
  if (!report.ok()) return fail(report.status());
  for (const std::string& line : report->refused) std::printf("%s\n", line.c_str());
  std::printf("%d %s, %d skipped, %zu refused\n", report->done, verb, report->skipped,
              report->refused.size());
  return report->refused.empty() ? 0 : 1;
}

int prune(const CacheFlags& flags, const kernels_cache::PruneOptions& options) {
  auto cache = flags.open_existing();
  if (!cache.ok()) return fail(cache.status());
  auto report = kernels_cache::prune(**cache, options);
  if (!report.ok()) return fail(report.status());
  std::printf("%d kernels (%lld bytes), %d standings, %d leftovers, %d leases, %d environments removed\n",
              report->entries, static_cast<long long>(report->bytes), report->standings, report->leftovers,
              report->leases, report->environments);
  return 0;
}

}  // namespace

void add_cache_command(CLI::App& app, int* exit_code) {
  CLI::App* cache = app.add_subcommand("cache", "look at and tend a cache of verified kernels");
  cache->require_subcommand(1);
  auto flags = std::make_shared<CacheFlags>();
  const auto add = [&](const char* name, const char* help) {
    CLI::App* c = cache->add_subcommand(name, help);
    flags->add_to(*c);
    return c;
  };
  add("list", "kernels, most served first, and what is held against them")->callback([=] {
    *exit_code = list(*flags);
  });

  auto remove_bad = std::make_shared<bool>(false);
  CLI::App* v = add("verify", "check every entry's checksums; 1: some are bad");
  v->add_flag("--remove", *remove_bad, "remove entries that can never be used");
  v->callback([=] { *exit_code = verify(*flags, *remove_bad); });

  auto path = std::make_shared<std::string>();
  CLI::App* e = add("export", "write all kernels that may serve into one archive");
  e->add_option("archive", *path)->required();
  e->callback([=] {
    auto c = flags->open(Access::kReadOnly);
    *exit_code =
        c.ok() ? transfer(kernels_cache::export_entries(**c, {}, *path), "exported") : fail(c.status());
  });
  CLI::App* i = add("import", "commit an archive's kernels (native code: trust it as you trust its owner)");
  i->add_option("archive", *path)->required()->check(CLI::ExistingFile);
  i->callback([=] {
    auto c = flags->open(Access::kReadWrite);
    *exit_code = c.ok() ? transfer(kernels_cache::import_entries(**c, *path), "imported") : fail(c.status());
  });

  struct PruneFlags {
    kernels_cache::PruneOptions options;
    double unserved_days = -1, standings_days = -1;
  };
  auto p = std::make_shared<PruneFlags>();
  CLI::App* pr = add("prune", "remove what is not needed");
  pr->add_option("--bytes", p->options.bytes_max, "evict the least served down to so many bytes");
  pr->add_option("--unserved-days", p->unserved_days, "remove kernels that never served and are older");
  pr->add_option("--standings-days", p->standings_days, "forget quarantines that are older");
  pr->add_flag("--quarantined", p->options.quarantined, "remove entries of quarantined kernels");
  pr->add_flag("--other-environments", p->options.other_environments,
               "remove directories of other environments");
  pr->callback([=] {
    constexpr double kDayNs = 86400e9;
    if (p->unserved_days >= 0)
      p->options.unserved_older_than_ns = static_cast<int64_t>(p->unserved_days * kDayNs);
    if (p->standings_days >= 0)
      p->options.standings_older_than_ns = static_cast<int64_t>(p->standings_days * kDayNs);
    *exit_code = prune(*flags, p->options);
  });
}

}  // namespace niche::cli
