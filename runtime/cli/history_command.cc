// `niche sessions`, `niche tree`, `niche export`: what past sessions tried, from the store.
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>

#include "evolve/report/session_tree.h"
#include "evolve/report/trajectories.h"
#include "runtime/cli/common.h"

namespace niche::cli {
namespace {

using evolve::report::SessionTree;

constexpr int kNothing = 3;  // the exit code

struct Options {
  std::string cache, store, id = "last", html, format = "jsonl", out;
  int limit = 50, export_limit = std::numeric_limits<int>::max();
  bool all = false;
  std::string path() const {
    return !store.empty() ? store : cache.empty() ? "" : cache + "/trajectories.sqlite";
  }
  // What past sessions left is looked at, and stays as it is.
  dispatch::Status look(const std::function<dispatch::Status(evolve::store::Store&)>& at) const {
    if (path().empty()) return dispatch::invalid("which store? give --store FILE, or --cache DIR");
    return evolve::store::Store::look_at(path(), at);
  }
};

int sessions(const Options& o) {
  std::string table;
  const auto s = o.look([&](evolve::store::Store& store) -> dispatch::Status {
    auto rows = store.sessions(o.limit);
    if (!rows.ok()) return rows.status();
    table = evolve::report::sessions_table(*rows);
    return {};
  });
  if (!s.ok()) return fail(s);
  if (const auto w = write_out("", table); !w.ok()) return fail(w);
  return 0;
}

// A page or an export in the store's place would be the end of it.
dispatch::Status not_the_store(const Options& o, const std::string& path) {
  std::error_code none;
  if (std::filesystem::equivalent(path, o.path(), none))
    return dispatch::invalid("'" + path + "' is the store: name another file");
  return {};
}

int tree(const Options& o) {
  if (const auto s = not_the_store(o, o.html); !s.ok()) return fail(s);
  SessionTree t;
  const auto s = o.look([&](evolve::store::Store& store) -> dispatch::Status {
    auto loaded = SessionTree::load(store, o.id);
    if (!loaded.ok()) return loaded.status();
    t = std::move(*loaded);
    return {};
  });
  if (!s.ok()) return fail(s);
  const std::string text =
      o.html.empty() ? evolve::report::tree_text(t, o.all) : evolve::report::tree_page(t);
  if (const auto w = write_out(o.html, text); !w.ok()) return fail(w);
  if (!o.html.empty())
    std::printf("%s: %zu candidates of %s\n", o.html.c_str(), t.nodes.size(), t.session.id.c_str());
  return 0;
}

int export_sessions(const Options& o) {
  if (const auto s = not_the_store(o, o.out); !s.ok()) return fail(s);
  std::string text;
  const auto s = o.look([&](evolve::store::Store& store) -> dispatch::Status {
    text.clear();
    std::vector<std::string> ids{o.id};
    if (o.id == "all") {
      ids.clear();
      auto rows = store.sessions(o.export_limit);
      if (!rows.ok()) return rows.status();
      for (auto r = rows->rbegin(); r != rows->rend(); ++r) ids.push_back(r->id);
    }
    for (const std::string& id : ids) {
      auto t = SessionTree::load(store, id);
      if (!t.ok()) return t.status();
      auto lines = evolve::report::export_session(*t, o.format);
      if (!lines.ok()) return lines.status();
      text += *lines;
    }
    return {};
  });
  if (!s.ok()) return fail(s);
  if (text.empty()) {
    std::fprintf(stderr, "niche: nothing to export: %s has no example of the format '%s'\n",
                 o.id == "all" ? "no session" : ("session " + o.id).c_str(), o.format.c_str());
    return kNothing;
  }
  if (const auto w = write_out(o.out, text); !w.ok()) return fail(w);
  return 0;
}

void add_store(CLI::App& c, Options& o) {
  c.add_option("--cache", o.cache, "cache directory that holds the store")->envname("NICHE_CACHE_DIR");
  c.add_option("--store", o.store, "the SQLite file itself");
}

}  // namespace

void add_history_commands(CLI::App& app, int* exit_code) {
  auto o = std::make_shared<Options>();
  CLI::App* s = app.add_subcommand("sessions", "list evolution sessions, newest first");
  add_store(*s, *o);
  s->add_option("--limit", o->limit, "at most so many")->check(whole_in(1, 1'000'000))->capture_default_str();
  s->callback([o, exit_code] { *exit_code = sessions(*o); });

  CLI::App* t = app.add_subcommand("tree", "what a session tried, as text or as one HTML page");
  add_store(*t, *o);
  t->add_option("session", o->id, "its id, the beginning of it, or last")->capture_default_str();
  t->add_option("--html", o->html, "write a page with tree, curve and diffs to this file");
  t->add_flag("--all", o->all, "every candidate, not only those that matter");
  t->callback([o, exit_code] { *exit_code = tree(*o); });

  CLI::App* e = app.add_subcommand(
      "export", "sessions with their measured rewards, for training models; 3: nothing to export");
  add_store(*e, *o);
  e->add_option("session", o->id, "its id, the beginning of it, last, or all")->capture_default_str();
  e->add_option("--format", o->format, "jsonl, sft or dpo")->capture_default_str();
  e->add_option("--limit", o->export_limit, "with all: the newest so many; default: every one")
      ->check(whole_in(1, 1'000'000));
  e->add_option("--out", o->out, "file; default: standard output");
  e->callback([o, exit_code] { *exit_code = export_sessions(*o); });
}

}  // namespace niche::cli
