// `niche cache list|verify|export|import|quarantine|forgive|prune`.
#include <algorithm>
#include <cstdio>

#include "dispatch/base/clock.h"
#include "kernels_cache/maintenance.h"
#include "runtime/cli/common.h"

namespace niche::cli {
namespace {

using dispatch::Status;
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

// The kernel that `text` names: its id as `cache list` prints it, or its whole name.
dispatch::Result<kernels_cache::KernelRef> find_kernel(KernelCache& cache, const std::string& text) {
  std::vector<kernels_cache::KernelRef> found;
  for (const kernels_cache::Standing& s : cache.standings().list())
    if (s.id.hex() == text || s.kernel == text) found.push_back({s.id, s.definition, s.kernel});
  for (const KernelCache::EntryInfo& e : cache.entries()) {
    if (std::any_of(found.begin(), found.end(), [&](const auto& f) { return f.id == e.id; })) continue;
    const auto record = cache.load(e.id, kernels_cache::Part::kRecord);
    if (e.id.hex() == text || (record && record->name == text))
      found.push_back(record ? kernels_cache::kernel_ref(*record) : kernels_cache::KernelRef{e.id, "", ""});
  }
  if (found.size() == 1) return found.front();
  if (found.empty())
    return dispatch::not_found("cache " + cache.home().path() + ": no kernel '" + text +
                               "'; `niche cache list` shows all");
  std::string ids;
  for (const auto& f : found) ids += ' ' + f.id.hex();
  return dispatch::invalid("cache " + cache.home().path() + ": several kernels are named '" + text +
                           "': say which of" + ids);
}

int quarantine(const CacheFlags& flags, const std::string& kernel, const std::string& reason) {
  auto cache = flags.open_existing();
  if (!cache.ok()) return fail(cache.status());
  auto ref = find_kernel(**cache, kernel);
  if (!ref.ok()) return fail(ref.status());
  const Status s =
      (*cache)->standings().quarantine(*ref, "by hand: " + reason, dispatch::SystemClock().unix_time_ns());
  if (!s.ok()) return fail(s);
  std::printf("%s [%s] is quarantined; servers on this cache take it out within two seconds\n",
              ref->kernel.c_str(), ref->definition.c_str());
  return 0;
}

int forgive(const CacheFlags& flags, const std::string& kernel) {
  auto cache = flags.open_existing();
  if (!cache.ok()) return fail(cache.status());
  auto ref = find_kernel(**cache, kernel);
  if (!ref.ok()) return fail(ref.status());
  if ((*cache)->standings().state(ref->id) == kernels_cache::StandingState::kClear)
    return fail(dispatch::invalid("nothing stands against kernel '" + kernel + "'"));
  const Status s = (*cache)->standings().forget(ref->id);
  if (!s.ok()) return fail(s);
  std::printf("nothing stands against %s [%s] any more; servers that start from now on may serve it\n",
              ref->kernel.c_str(), ref->definition.c_str());
  return 0;
}

int export_all(KernelCache& cache, const std::string& path) {
  const auto report = kernels_cache::export_entries(cache, {}, path);
  const int code = transfer(report, "exported");
  if (code != 0 || report->done != 0) return code;
  std::fprintf(stderr, "niche: %s: no kernel in it: %s has none that may serve\n", path.c_str(),
               cache.home().path().c_str());
  return 3;
}

int prune(const CacheFlags& flags, const kernels_cache::PruneOptions& options) {
  auto cache = flags.open_root();
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
  CLI::App* e = add("export", "write all kernels that may serve into one archive; 3: there is none");
  e->add_option("archive", *path)->required();
  e->callback([=] {
    auto c = flags->open(Access::kReadOnly);
    *exit_code = c.ok() ? export_all(**c, *path) : fail(c.status());
  });
  CLI::App* i = add("import", "commit an archive's kernels (native code: trust it as you trust its owner)");
  i->add_option("archive", *path)->required()->check(CLI::ExistingFile);
  i->callback([=] {
    auto c = flags->open(Access::kReadWrite);
    *exit_code = c.ok() ? transfer(kernels_cache::import_entries(**c, *path), "imported") : fail(c.status());
  });

  auto kernel = std::make_shared<std::string>();
  auto reason = std::make_shared<std::string>();
  CLI::App* q =
      add("quarantine",
          "take a kernel out of service, here and for good; running servers follow within two seconds");
  q->add_option("kernel", *kernel, "its id or name, as `niche cache list` prints it")->required();
  q->add_option("--reason", *reason, "for people who find it later")->required();
  q->callback([=] { *exit_code = quarantine(*flags, *kernel, *reason); });
  CLI::App* f = add("forgive", "forget a quarantine or a hold: the kernel may serve again");
  f->add_option("kernel", *kernel, "its id or name")->required();
  f->callback([=] { *exit_code = forgive(*flags, *kernel); });

  struct PruneFlags {
    kernels_cache::PruneOptions options;
    double unserved_days = -1, standings_days = -1;
  };
  auto p = std::make_shared<PruneFlags>();
  CLI::App* pr = add("prune", "remove what is not needed");
  pr->add_option("--bytes", p->options.bytes_max, "evict the least served down to so many bytes")
      ->check(whole_in(0, std::numeric_limits<int64_t>::max()));
  pr->add_option("--unserved-days", p->unserved_days, "remove kernels that never served and are older")
      ->check(number_in(0, 36500));
  pr->add_option("--standings-days", p->standings_days, "forget quarantines that are older")
      ->check(number_in(0, 36500));
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
