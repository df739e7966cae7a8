// `niche kb`: what the knowledge base says, and what sessions taught it.
#include <cstdio>

#include "evolve/session/session.h"
#include "kb/library.h"
#include "kb/skills.h"
#include "runtime/cli/common.h"

namespace niche::cli {
namespace {

struct Options {
  kb::Query query;
  std::vector<std::string> words, metrics;
  std::string directory, id, cache;
};

int search(const Options& o) {
  auto library = kb::Library::open(o.directory);
  if (!library.ok()) return fail(library.status());
  kb::Query q = o.query;
  for (const std::string& w : o.words) q.words += w + ' ';
  for (const std::string& m : o.metrics) {
    const size_t eq = m.find('=');
    if (eq == std::string::npos || eq == 0)
      return fail(dispatch::invalid("metric '" + m + "': expected NAME=VALUE"));
    const auto value = parse_number<double>(std::string_view(m).substr(eq + 1));
    if (!value) return fail(dispatch::invalid("metric '" + m + "': no number after the '='"));
    q.metrics[m.substr(0, eq)] = *value;
  }
  if (q.platform == "here") q.platform = evolve::arch_name(evolve::detect_target(1));
  auto hits = (*library)->search(q);
  if (!hits.ok()) return fail(hits.status());
  for (const kb::Hit& h : *hits)
    std::printf("[%s] %s (%.1f)\n%s\n", h.document.c_str(), h.title.c_str(), h.score, h.text.c_str());
  if (hits->empty()) std::printf("nothing; `niche kb list` shows all pages\n");
  return 0;
}

int list(const Options& o) {
  auto library = kb::Library::open(o.directory);
  if (!library.ok()) return fail(library.status());
  for (const kb::Document& d : (*library)->documents())
    std::printf("%-12s %-26s %s\n", d.tier.c_str(), d.id.c_str(), d.title.c_str());
  return 0;
}

int show(const Options& o) {
  auto library = kb::Library::open(o.directory);
  if (!library.ok()) return fail(library.status());
  const kb::Document* d = (*library)->find(o.id);
  if (d == nullptr) return fail(dispatch::not_found("no page '" + o.id + "'; `niche kb list` shows all"));
  std::printf("# %s\n\n", d->title.c_str());
  for (const kb::Module& m : d->modules) std::printf("%s\n", m.text.c_str());
  if (!d->source.empty()) std::printf("Source: %s\n", d->source.c_str());
  return 0;
}

int skills(const Options& o) {
  if (o.cache.empty())
    return fail(dispatch::invalid("which cache? sessions write skills into theirs: give --cache DIR"));
  std::vector<kb::Skill> all;
  const auto s =
      kb::SkillBook::look_at(o.cache + "/skills.sqlite", [&](kb::SkillBook& book) -> dispatch::Status {
        auto found = book.all(o.query.op);
        if (!found.ok()) return found.status();
        all = std::move(*found);
        return {};
      });
  if (!s.ok()) return fail(s);
  for (const kb::Skill& k : all)
    std::printf("%-7s %-8s %-20s %-10s helped %d of %d  %s\n%s", k.trusted() ? "trusted" : "suspect",
                k.kind.c_str(), k.op.c_str(), k.arch.c_str(), k.helped, k.shown, k.title.c_str(),
                kb::quoted(k.text).c_str());
  if (all.empty())
    std::fprintf(stderr, "niche: %s\n",
                 o.query.op.empty() ? "no skills yet" : ("no skills of '" + o.query.op + "' yet").c_str());
  return 0;
}

}  // namespace

void add_kb_command(CLI::App& app, int* exit_code) {
  CLI::App* c = app.add_subcommand("kb", "knowledge about writing kernels");
  c->require_subcommand(1);
  auto o = std::make_shared<Options>();
  const auto directory = [&](CLI::App* s) {
    s->add_option("--directory", o->directory, "pages of your own (.md)");
  };
  CLI::App* s = c->add_subcommand("search", "sections by platform, bottleneck, phase, signals and words");
  s->add_option("words", o->words, "free text");
  s->add_option("--platform", o->query.platform, "cpu.avx2, nvidia.sm90, amd.gfx942, ..., or here");
  s->add_option("--lang", o->query.lang, "cpp, cuda, hip, triton");
  s->add_option("--op", o->query.op, "operator");
  s->add_option("--phase", o->query.phase, "draft, improve, repair");
  s->add_option("--bottleneck", o->query.bottleneck, "memory, compute, latency, correctness, compile");
  s->add_option("--error", o->query.error, "an error message");
  s->add_option("--metric", o->metrics, "a figure, e.g. dram_pct=85 (repeat)")->allow_extra_args(false);
  s->add_option("--bytes", o->query.bytes_max, "at most so much text")
      ->check(whole_in(1, int64_t{1} << 30))
      ->capture_default_str();
  directory(s);
  s->callback([o, exit_code] { *exit_code = search(*o); });
  CLI::App* l = c->add_subcommand("list", "all pages");
  directory(l);
  l->callback([o, exit_code] { *exit_code = list(*o); });
  CLI::App* d = c->add_subcommand("show", "one page");
  d->add_option("id", o->id)->required();
  directory(d);
  d->callback([o, exit_code] { *exit_code = show(*o); });
  CLI::App* k = c->add_subcommand("skills", "what sessions learnt, with evidence");
  k->add_option("--cache", o->cache, "cache directory")->envname("NICHE_CACHE_DIR");
  k->add_option("--op", o->query.op, "of one operator");
  k->callback([o, exit_code] { *exit_code = skills(*o); });
}

}  // namespace niche::cli
