// Library: what is known about writing kernels, found by what a search is stuck on. Two stages: documents by
// platform, bottleneck, phase and signals (error texts, figures), then modules of the best of those by words,
// filled into a budget of bytes. SQLite FTS5, in memory; nothing is asked of a network or a model.
//
// Beside the shipped documents: a directory of a user's own, and skills that sessions wrote back (skills.h).
// Thread-safety: one owner. Cost: opening takes some ms, a search well below one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/base/status.h"
#include "kb/document.h"
#include "kb/sqlite.h"

namespace niche::kb {

struct Query {
  std::string platform;    // "cpu.avx2"; empty: any
  std::string lang;        // "cpp"; empty: any
  std::string op;          // "rms_norm"
  std::string phase;       // "draft", "improve", "repair"
  std::string bottleneck;  // "memory", "compute", ...
  std::string words;       // free text
  std::string error;       // a compiler's or gate's message
  std::map<std::string, double> metrics;
  size_t bytes_max = 8 << 10;
  int samples_max = 2;
};

struct Hit {
  std::string document, title, tier, heading, text;
  double score = 0;
};

class Library {
 public:
  // Shipped documents, and every .md below `directory` (empty: none). kInvalid: a document that does not
  // parse; kBusy: an id that is there twice.
  static dispatch::Result<std::unique_ptr<Library>> open(const std::string& directory = {});

  // Best first; together at most query.bytes_max bytes of text.
  dispatch::Result<std::vector<Hit>> search(const Query& query);
  const std::vector<Document>& documents() const { return documents_; }
  const Document* find(std::string_view id) const;

 private:
  Library() = default;
  dispatch::Status index();
  dispatch::Status add(std::string_view text, const std::string& origin);
  // bm25 by row for the given table; empty `match`: nothing.
  dispatch::Result<std::map<int64_t, double>> match(const char* sql, const std::string& match);

  std::vector<Document> documents_;
  std::unique_ptr<Database> db_;
};

// "cpu" holds for "cpu.avx2"; an empty list, or an empty platform, for everything.
bool platform_matches(const std::vector<std::string>& platforms, std::string_view platform);

// The words of a text as an FTS5 query: quoted and joined by OR; at most 64.
std::string fts_query(std::string_view text);

}  // namespace niche::kb
