// ModelSearch: the part of a session in which a model writes programs: the choice of operator and memory for
// each step, questions and answers, and the programs with their results. The session screens and judges them
// like any candidate.
//
// Operators: draft first (from nothing, then from the best template point), then expansion: improve a parent
// drawn by score and number of children (sigmoid of the robust score over 1 + children, after ShinkaEvolve),
// combine two, or restart without memory when six valid programs in a row brought nothing. A program that
// failed a gate is repaired at once, at most five times in a lineage.
//
// Its chance comes from the session's seed and the number of questions alone. Thread-safety: one owner.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evolve/proposer/proposal_source.h"
#include "evolve/session/diagnosis.h"
#include "evolve/session/proposal_context.h"

namespace niche::evolve {

struct ModelOptions {
  int questions_max = 40;
  double answer_seconds_max = 300;
  int answer_tokens_max = 16'384;
  // Of a question, for models with a small context: kept to as far as proposal_context.h says; 0: no limit. An answer gets a
  // quarter as many tokens, about as many bytes.
  int64_t context_bytes_max = 0;
};

// Pointers may be null and must outlive the session.
struct ModelParts {
  proposer::ProposalSource* source = nullptr;  // null: no model
  std::string trouble{};                       // why there is none although one was named
  kb::Library* library = nullptr;
  kb::SkillBook* skills = nullptr;
  ModelOptions options;
};

// A template point as material for a question.
struct TemplateMaterial {
  int node = -1;
  std::string label, text;
  double cost = 0;
};

class ModelSearch {
 public:
  static constexpr int kFixesMax = 5, kIdleMax = 6, kFailedQuestionsMax = 8;

  ModelSearch(ModelParts parts, uint64_t seed, std::string session)
      : parts_(std::move(parts)), seed_(seed), session_(std::move(session)), trouble_(parts_.trouble) {}
  void set_facts(ProposalFacts facts) { facts_ = std::move(facts); }
  // By node, of candidates for a GPU; outlives it.
  void set_digests(const std::map<int, Digest>* digests) { digests_ = digests; }

  // A question is under way, or could be asked.
  bool may_go_on() const;
  // Asks the next question if none is under way. `templates`: best first, not asked for without need.
  void ask(const std::function<std::vector<TemplateMaterial>()>& templates,
           const std::function<double(const std::vector<double>&)>& weighted);
  struct Answer {
    std::vector<int> programs;  // with ids, unscreened
    std::string exchange;       // the JSON of question and answer; empty when there are no programs
    std::string failure;        // why there are none
  };
  // What came of the question under way; nothing within the timeout.
  std::optional<Answer> poll(int timeout_ms, int batch);
  // A program from elsewhere: a store's history, an earlier session. kInvalid: it does not parse.
  dispatch::Status restore(Program program);

  Program& at(int id) { return programs_.at(id); }
  const Program& at(int id) const { return programs_.at(id); }
  const std::map<int, Program>& all() const { return programs_; }
  int next_id() const { return programs_.empty() ? kFirstProgram : programs_.rbegin()->first + 1; }
  // After the first result of a program. `unix_ns`: now; nothing: a result of before, whose skills were told
  // then.
  void observed(int id, const std::function<double(const std::vector<double>&)>& weighted,
                std::optional<int64_t> unix_ns);
  // After a kernel was committed.
  void learn_win(const std::string& title, const std::string& text, double gain, int64_t unix_ns);

  // Gives up the question under way; waits for its cost for so long. True: it has cost something, which counts from now on.
  bool finish(double seconds_max);

  int questions() const { return questions_; }
  // Takes up where an earlier process stopped: questions asked, failures in a row at the end, what all of them
  // cost.
  void take_up(int questions, int failed_in_a_row, double usd, int64_t tokens);
  double usd() const { return (counted_ ? 0 : earlier_.usd) + spent_.usd; }
  int64_t tokens() const {
    return (counted_ ? 0 : earlier_.output_tokens) + spent_.input_tokens + spent_.output_tokens;
  }
  // The first trouble with the model; empty: none.
  const std::string& trouble() const { return trouble_; }

 private:
  struct Choice {
    ProposalTask task;
    int parent = -1, second = -1, fixes = 0;
  };
  Choice choose(const std::vector<TemplateMaterial>& templates,
                const std::function<double(const std::vector<double>&)>& weighted);
  void add_history(Choice& choice, const std::vector<TemplateMaterial>& templates,
                   const std::function<double(const std::vector<double>&)>& weighted) const;

  // What limits the parent, or the best so far where a program is written anew, and the one method for it.
  void add_diagnosis(Choice& choice, const std::vector<TemplateMaterial>& templates) const;

  ModelParts parts_;
  const std::map<int, Digest>* digests_ = nullptr;
  uint64_t seed_;
  std::string session_;
  ProposalFacts facts_;
  std::string stable_;
  std::map<int, Program> programs_;
  std::map<int, double> known_cost_;  // of template nodes that were material
  proposer::ProposalRequest request_;
  Choice pending_;
  std::string last_failure_;  // why the last answer held no program
  int questions_ = 0, failed_questions_ = 0, idle_ = 0;
  double best_ = 0;
  // Takes over what the payer counts, where it does.
  bool take_account();

  proposer::Usage earlier_, spent_;  // by earlier processes (tokens as output), by this one
  bool counted_ = false;             // spent_ is the payer's count, which began with earlier_
  std::string trouble_;
};

}  // namespace niche::evolve
