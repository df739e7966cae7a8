#include "kb/skills.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "kb/library.h"

namespace niche::kb {
namespace {

using dispatch::Result;
using dispatch::Status;

constexpr size_t kTextBytesMax = 2048;
constexpr int kHopelessAfter = 8;
constexpr int kLockTimeoutMs = 5000;
constexpr const char* kKind = "skills";  // in messages

constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS skills(id INTEGER PRIMARY KEY, kind TEXT NOT NULL, op TEXT NOT NULL, dtype "
    "TEXT NOT "
    "NULL, arch TEXT NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL, gain REAL NOT NULL, shown INTEGER "
    "NOT NULL "
    "DEFAULT 0, helped INTEGER NOT NULL DEFAULT 0, session TEXT NOT NULL, unix_ns INTEGER NOT NULL, "
    "UNIQUE(kind, op, dtype, arch, title)) STRICT";

std::string cut(std::string_view s) {
  size_t n = std::min(s.size(), kTextBytesMax);
  while (n > 0 && n < s.size() && (static_cast<unsigned char>(s[n]) & 0xc0) == 0x80) --n;
  return std::string(s.substr(0, n));
}

// Upper confidence bound of how often a skill helps; one never shown stands at the top of its class.
double promise(const Skill& s, double total) {
  const double n = std::max(1, s.shown);
  return (s.helped + 0.5) / (n + 1) + 0.5 * std::sqrt(std::log(total + 2) / n);
}

}  // namespace

Result<std::unique_ptr<SkillBook>> SkillBook::open(const std::string& path) {
  auto db = Database::open(kKind, path, kLockTimeoutMs);
  if (!db.ok()) return db.status();
  NICHE_RETURN_IF_ERROR((*db)->exec("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"));
  NICHE_RETURN_IF_ERROR((*db)->exec(kSchema));
  return std::unique_ptr<SkillBook>(new SkillBook(std::move(*db)));
}

Status SkillBook::look_at(const std::string& path, const std::function<Status(SkillBook&)>& look) {
  return Database::look_at(kKind, path, kLockTimeoutMs, [&](std::unique_ptr<Database> db) -> Status {
    auto tables = db->scalar("SELECT count(*) FROM sqlite_schema WHERE name='skills'");
    if (!tables.ok()) return tables.status();
    if (*tables == 0) return dispatch::not_found(db->name() + ": no skill was ever written to it");
    SkillBook book(std::move(db));
    return look(book);
  });
}

Result<int64_t> SkillBook::add(const Skill& skill) {
  int64_t id = 0;
  {
    auto s = db_->prepare(
        "INSERT INTO skills(kind, op, dtype, arch, title, text, gain, session, unix_ns) "
        "VALUES(?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET gain=max(gain, excluded.gain) RETURNING id");
    if (!s.ok()) return s.status();
    s->bind(skill.kind).bind(skill.op).bind(skill.dtype).bind(skill.arch);
    s->bind(cut(skill.title)).bind(cut(skill.text)).bind(skill.gain).bind(skill.session).bind(skill.unix_ns);
    if (s->step()) id = s->integer(0);
    NICHE_RETURN_IF_ERROR(s->run());
  }
  NICHE_RETURN_IF_ERROR(
      db_->exec("DELETE FROM skills WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY "
                "op, arch ORDER BY "
                "helped DESC, unix_ns DESC) AS place FROM skills) WHERE place > 200)"));
  return id;
}

Result<std::vector<Skill>> SkillBook::read(const std::string& where, const std::vector<std::string>& values) {
  auto s = db_->prepare(
      "SELECT id, kind, op, dtype, arch, title, text, gain, shown, helped, session, unix_ns FROM skills "
      "WHERE " +
      where + " ORDER BY helped DESC, id LIMIT 1000");
  if (!s.ok()) return s.status();
  for (const std::string& v : values) s->bind(v);
  std::vector<Skill> skills;
  while (s->step())
    skills.push_back({s->integer(0), s->text(1), s->text(2), s->text(3), s->text(4), s->text(5), s->text(6),
                      s->real(7), static_cast<int>(s->integer(8)), static_cast<int>(s->integer(9)),
                      s->text(10), s->integer(11)});
  if (!s->status().ok()) return s->status();
  return skills;
}

Result<std::vector<Skill>> SkillBook::all(const std::string& op) {
  return op.empty() ? read("1", {}) : read("op=?", {op});
}

Result<std::vector<Skill>> SkillBook::pick(const std::string& op, const std::string& dtype,
                                           const std::string& arch, const std::string& error,
                                           size_t bytes_max) {
  // Lessons hold for any operator of the architecture; wins for their own.
  auto skills = read("arch=?1 AND (kind='lesson' OR (op=?2 AND dtype=?3))", {arch, op, dtype});
  if (!skills.ok()) return skills.status();
  double total = 0;
  for (const Skill& s : *skills) total += s.shown;
  std::set<std::string> signal;
  const std::string terms = fts_query(error);
  for (size_t at = 0; (at = terms.find('"', at)) != std::string::npos;) {
    const size_t end = terms.find('"', at + 1);
    if (const std::string w = terms.substr(at + 1, end - at - 1); w.size() > 3) signal.insert(w);
    at = end + 1;
  }
  std::erase_if(*skills, [&](const Skill& s) {
    if (s.helped == 0 && s.shown >= kHopelessAfter) return true;
    if (s.kind != "lesson") return false;
    int common = 0;
    std::string title = s.title;
    for (char& c : title) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const std::string& w : signal) common += title.find(w) != std::string::npos;
    return common < 2;
  });
  std::stable_sort(skills->begin(), skills->end(), [&](const Skill& a, const Skill& b) {
    if (a.trusted() != b.trusted()) return a.trusted();
    return promise(a, total) > promise(b, total);
  });
  std::vector<Skill> picked;
  size_t bytes = 0;
  int suspects = 0;
  for (Skill& s : *skills) {
    if ((!s.trusted() && suspects > 0) || bytes + s.text.size() > bytes_max) continue;
    suspects += !s.trusted();
    bytes += s.text.size();
    picked.push_back(std::move(s));
  }
  return picked;
}

Result<std::vector<Skill>> SkillBook::elsewhere(const std::string& op, const std::string& arch, int count) {
  auto skills = read("kind='win' AND arch=?1 AND op<>?2", {arch, op});
  if (!skills.ok()) return skills.status();
  double total = 0;
  for (const Skill& s : *skills) total += s.shown;
  std::erase_if(*skills, [](const Skill& s) { return s.helped == 0 && s.shown >= kHopelessAfter; });
  std::stable_sort(skills->begin(), skills->end(), [&](const Skill& a, const Skill& b) {
    if (a.trusted() != b.trusted()) return a.trusted();
    const double pa = promise(a, total), pb = promise(b, total);
    return pa != pb ? pa > pb : a.gain > b.gain;
  });
  std::vector<Skill> picked;
  for (Skill& s : *skills) {
    if (static_cast<int>(picked.size()) >= count) break;
    if (std::none_of(picked.begin(), picked.end(),
                     [&](const Skill& p) { return p.op == s.op && p.dtype == s.dtype; }))
      picked.push_back(std::move(s));
  }
  return picked;
}

Status SkillBook::shown(const std::vector<int64_t>& ids, bool helped) {
  std::string list;
  for (int64_t id : ids) {
    if (!list.empty()) list += ',';
    list += std::to_string(id);
  }
  if (list.empty()) return {};
  return db_->exec("UPDATE skills SET shown=shown+1, helped=helped+" + std::string(helped ? "1" : "0") +
                   " WHERE id IN (" + list + ")");
}

std::string quoted(std::string_view text) {
  std::string out = "> ";
  for (char c : text) {
    if (c == '\n')
      out += "\n> ";
    else if (static_cast<unsigned char>(c) >= 0x20 || c == '\t')
      out += c;
  }
  for (const char* tag : {"<NAME>", "<DESCRIPTION>", "<CODE>", "<DIFF>", "</"})
    for (size_t at; (at = out.find(tag)) != std::string::npos;) out[at] = '(';
  for (size_t at; (at = out.find("```")) != std::string::npos;) out.replace(at, 3, "'''");
  return out + '\n';
}

}  // namespace niche::kb
