#include "kb/library.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

namespace niche::kb {
namespace {

using dispatch::Result;
using dispatch::Status;

constexpr size_t kDocumentsMax = 8;       // that stage two looks into
constexpr int kModulesOfOneMax = 3;       // so that one long page does not take the whole budget
constexpr size_t kSignalBytesMax = 2048;  // of an error text

bool holds(const std::vector<std::string>& list, std::string_view v) {
  return std::find(list.begin(), list.end(), v) != list.end();
}

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// How much a document's front matter speaks for it. Below 0: it does not belong here.
double fit(const Document& d, const Query& q, const std::string& error) {
  if (!platform_matches(d.platforms, q.platform)) return -1;
  if (!q.lang.empty() && !d.langs.empty() && !holds(d.langs, q.lang)) return -1;
  if (!q.op.empty() && !d.ops.empty() && !holds(d.ops, q.op)) return -1;
  if (!q.phase.empty() && !d.phases.empty() && !holds(d.phases, q.phase)) return -1;
  const bool bottleneck = !q.bottleneck.empty() && holds(d.bottlenecks, q.bottleneck);
  double score = bottleneck ? 3 : 0;
  if (!q.op.empty() && holds(d.ops, q.op)) score += 3;
  if (!q.phase.empty() && holds(d.phases, q.phase)) score += 1;
  // Exact platforms before general ones.
  if (!q.platform.empty() && holds(d.platforms, q.platform)) score += 1.5;
  for (const std::string& e : d.errors)
    if (!error.empty() && error.find(lower(e)) != std::string::npos) score += 12;  // before any words
  for (const MetricTrigger& m : d.metrics) {
    const auto at = q.metrics.find(m.name);
    if (at == q.metrics.end()) continue;
    if (m.holds(at->second))
      score += 6;
    else if (!bottleneck)
      return -1;  // it is known not to be the case
  }
  return score;
}

}  // namespace

bool platform_matches(const std::vector<std::string>& platforms, std::string_view platform) {
  if (platforms.empty() || platform.empty()) return true;
  return std::any_of(platforms.begin(), platforms.end(), [&](const std::string& p) {
    return platform == p ||
           (platform.size() > p.size() && platform.starts_with(p) && platform[p.size()] == '.') ||
           (p.size() > platform.size() && p.starts_with(platform) && p[platform.size()] == '.');
  });
}

std::string fts_query(std::string_view text) {
  std::string out;
  std::set<std::string> words;
  for (size_t at = 0; at < text.size() && words.size() < 64;) {
    size_t end = at;
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_'))
      ++end;
    if (const std::string w = lower(text.substr(at, end - at));
        w.size() >= 2 && w.size() <= 40 && words.insert(w).second)
      out += (out.empty() ? "\"" : " OR \"") + w + '"';
    at = end + 1;
  }
  return out;
}

Status Library::add(std::string_view text, const std::string& origin) {
  auto d = parse_document(text, origin);
  if (!d.ok()) return d.status();
  if (find(d->id) != nullptr) return dispatch::busy(origin + ": there is a document '" + d->id + "' already");
  documents_.push_back(std::move(*d));
  return {};
}

const Document* Library::find(std::string_view id) const {
  const auto at =
      std::find_if(documents_.begin(), documents_.end(), [&](const Document& d) { return d.id == id; });
  return at == documents_.end() ? nullptr : &*at;
}

Result<std::unique_ptr<Library>> Library::open(const std::string& directory) {
  std::unique_ptr<Library> library(new Library());
  for (const ShippedFile& f : shipped_documents())
    NICHE_RETURN_IF_ERROR(library->add(f.text, std::string(f.name)));
  std::error_code ec;
  std::vector<std::string> files;
  if (!directory.empty())
    for (std::filesystem::recursive_directory_iterator at(directory, ec), end; !ec && at != end;
         at.increment(ec))
      if (at->path().extension() == ".md") files.push_back(at->path().string());
  if (ec) return dispatch::io_error("kb directory " + directory + ": " + ec.message());
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    std::ifstream in(file, std::ios::binary);
    std::string text(kDocumentBytesMax + 1, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(in.gcount()));
    NICHE_RETURN_IF_ERROR(library->add(text, file));
  }
  NICHE_RETURN_IF_ERROR(library->index());
  return library;
}

Status Library::index() {
  auto db = Database::open("kb index", ":memory:", 0);
  if (!db.ok()) return db.status();
  db_ = std::move(*db);
  NICHE_RETURN_IF_ERROR(db_->exec(
      "CREATE VIRTUAL TABLE documents USING fts5(title, symptom, body, tokenize=\"unicode61 tokenchars "
      "'_'\");"
      "CREATE VIRTUAL TABLE modules USING fts5(heading, body, tokenize=\"unicode61 tokenchars '_'\");"));
  auto document = db_->prepare("INSERT INTO documents(rowid, title, symptom, body) VALUES(?,?,?,?)");
  if (!document.ok()) return document.status();
  auto module = db_->prepare("INSERT INTO modules(rowid, heading, body) VALUES(?,?,?)");
  if (!module.ok()) return module.status();
  for (size_t d = 0; d < documents_.size(); ++d) {
    const Document& doc = documents_[d];
    std::string body;
    for (size_t m = 0; m < doc.modules.size(); ++m) {
      body += doc.modules[m].text;
      module->bind(static_cast<int64_t>(d * 1000 + m)).bind(doc.modules[m].heading);
      NICHE_RETURN_IF_ERROR(module->bind(doc.modules[m].text).run());
      module->reset();
    }
    document->bind(static_cast<int64_t>(d)).bind(doc.title).bind(doc.symptom);
    NICHE_RETURN_IF_ERROR(document->bind(body).run());
    document->reset();
  }
  return {};
}

Result<std::map<int64_t, double>> Library::match(const char* sql, const std::string& match) {
  std::map<int64_t, double> scores;
  if (match.empty()) return scores;
  auto s = db_->prepare(sql);
  if (!s.ok()) return s.status();
  s->bind(match);
  while (s->step()) scores[s->integer(0)] = -s->real(1);  // bm25 is smaller for better matches
  if (!s->status().ok()) return s->status();
  return scores;
}

Result<std::vector<Hit>> Library::search(const Query& query) {
  const std::string error = lower(std::string_view(query.error).substr(0, kSignalBytesMax));
  const std::string words = fts_query(query.words + ' ' + query.op + ' ' + query.bottleneck + ' ' + error);
  auto by_document =
      match("SELECT rowid, bm25(documents, 4.0, 8.0, 1.0) FROM documents WHERE documents MATCH ?", words);
  if (!by_document.ok()) return by_document.status();
  std::vector<std::pair<double, size_t>> order;
  for (size_t d = 0; d < documents_.size(); ++d) {
    double score = fit(documents_[d], query, error);
    if (score < 0) continue;
    if (const auto at = by_document->find(static_cast<int64_t>(d)); at != by_document->end())
      score += at->second;
    if (score > 0) order.emplace_back(-score, d);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (order.size() > kDocumentsMax) order.resize(kDocumentsMax);

  auto by_module = match("SELECT rowid, bm25(modules, 4.0, 1.0) FROM modules WHERE modules MATCH ?", words);
  if (!by_module.ok()) return by_module.status();
  std::vector<Hit> hits;
  for (const auto& [negative, d] : order) {
    const Document& doc = documents_[d];
    for (size_t m = 0; m < doc.modules.size(); ++m) {
      const auto at = by_module->find(static_cast<int64_t>(d * 1000 + m));
      const double own = at == by_module->end() ? 0 : at->second;
      // A page's first section is its summary.
      hits.push_back({doc.id, doc.title, doc.tier, doc.modules[m].heading, doc.modules[m].text,
                      -negative + own + (m == 0 ? 0.5 : 0)});
    }
  }
  std::stable_sort(hits.begin(), hits.end(), [](const Hit& a, const Hit& b) { return a.score > b.score; });
  std::vector<Hit> chosen;
  std::map<std::string, int> of_document;
  size_t bytes = 0;
  int samples = 0;
  for (Hit& h : hits) {
    if (bytes + h.text.size() > query.bytes_max || of_document[h.document] >= kModulesOfOneMax) continue;
    if (h.tier == "samples" && samples >= query.samples_max) continue;
    samples += h.tier == "samples";
    ++of_document[h.document];
    bytes += h.text.size();
    chosen.push_back(std::move(h));
  }
  return chosen;
}

}  // namespace niche::kb
