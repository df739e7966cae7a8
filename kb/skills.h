// SkillBook: what sessions learnt, with the evidence for it, in one SQLite file that many processes share.
// Wins (what made a kernel of an operator faster, by how much) and lessons (an error and what cured it).
//
// A skill is *suspect* until it has helped twice: it was shown before a proposal, and that proposal passed
// and was better than what it set out from. Suspect ones are shown one at a time; one that was shown eight
// times without any help is not shown again. Texts come from models and compilers: they are data; whoever
// shows them quotes them (quoted()).
//
// Thread-safety: one owner thread; open one a thread. Bounds: texts are cut at 2 KiB; per operator and
// architecture the 200 skills of the best record are kept.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"
#include "kb/sqlite.h"

namespace niche::kb {

inline constexpr int kTrustedAfter = 2;

struct Skill {
  int64_t id = 0;
  std::string kind;  // "win", "lesson"
  std::string op, dtype, arch;
  std::string title, text;
  double gain = 0;  // of a win: cost before / after, measured by the judge
  int shown = 0, helped = 0;
  std::string session;  // where it came from
  int64_t unix_ns = 0;
  bool trusted() const { return helped >= kTrustedAfter; }
};

class SkillBook {
 public:
  // kCorrupt, kIo: the file.
  static dispatch::Result<std::unique_ptr<SkillBook>> open(const std::string& path);
  // To look at one without the right to write to it: Database::look_at. kNotFound: there is none, or nothing was ever
  // written to it.
  static dispatch::Status look_at(const std::string& path,
                                  const std::function<dispatch::Status(SkillBook&)>& look);

  // A text that is there already (same kind, operator, type, architecture, title) keeps its record; the
  // larger gain stands. Gives the id.
  dispatch::Result<int64_t> add(const Skill& skill);
  // What to show: trusted ones first, by the upper bound of how often they help, then one suspect. Lessons
  // only where `error` holds some of their words.
  dispatch::Result<std::vector<Skill>> pick(const std::string& op, const std::string& dtype,
                                            const std::string& arch, const std::string& error,
                                            size_t bytes_max);
  // Wins of other operators, one an operator and type: trusted ones first, then by how often they may help; of
  // equal ones the larger gain. None that is not shown any more.
  dispatch::Result<std::vector<Skill>> elsewhere(const std::string& op, const std::string& arch, int count);
  dispatch::Status shown(const std::vector<int64_t>& ids, bool helped);
  dispatch::Result<std::vector<Skill>> all(const std::string& op = {});

 private:
  explicit SkillBook(std::unique_ptr<Database> db) : db_(std::move(db)) {}
  dispatch::Result<std::vector<Skill>> read(const std::string& where, const std::vector<std::string>& values);
  std::unique_ptr<Database> db_;
};

// Each line behind "> ", control characters removed, section tags defused: what a reader cannot take for a
// part of the question.
std::string quoted(std::string_view text);

}  // namespace niche::kb
