// WorkerClient: the server's end of one evolution session. The session itself (search, compile, verify,
// measure) lives in a worker process, started by posix_spawn; a candidate's crash is not a crash of the
// server, nor of the worker.
//
// Thread-safety: one owner thread. Progress: poll() never blocks longer than its timeout. Bounds: one worker
// a client; messages at most 16 MiB.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/base/status.h"
#include "evolve/verdict.h"

namespace niche::evolve {

// One Problem that live traffic showed, with its weight.
struct SeenProblem {
  std::vector<int64_t> var_axes;  // in Definition::var_axes() order
  double weight = 1;              // share of the Definition's device time
  bool cold = false;              // bytes touched between two live calls exceed the last-level cache
};

// A model that writes programs beside template points, or instead of them where an operator has no family. Its
// process alone reads the key.
struct ModelRequest {
  std::string proposer{};  // what to ask (evolve/proposer/proposer.h make_proposer); empty: nobody
  std::string key_file{};  // empty: the variable that the kind names, where the environment has it
  std::string price{};     // "IN,OUT": dollars a million tokens; empty: known, or free
  double usd_max = 0;      // dollars that this session may cost
  int64_t tokens_max = 0;  // 0: no limit
  int questions_max = 40;
  double answer_seconds_max = 300;
  int64_t context_bytes_max = 0;  // of a question; 0: no limit
};

struct SessionRequest {
  std::string session_id;
  std::string definition_json;        // see evolve/definition_json.h
  std::vector<SeenProblem> problems;  // at most 64; the planner merges the rest
  std::string cache_dir;   // kernels_cache directory: verified kernels are committed there by the worker
  std::string store_path;  // SQLite file with the search tree
  std::vector<std::string> op_libraries;  // shared objects and JSON Definitions to load, as the server did
  std::string python_program;  // runs references in Python (evolve/python/find_python.h); empty: python3
  double wall_seconds_max = 20;
  int evaluations_max = 400;
  double target_speedup = 0;                   // 0: none
  int threads = 1;                             // threads that a live call may use
  uint64_t seed = 0;                           // 0: from the system's entropy
  std::string policy = "default";              // evolve/search/policy.h
  int batch = 8;                               // candidates a compile; 1 to 64
  int64_t cache_bytes_max = int64_t{4} << 30;  // the least used kernels leave the cache beyond it
  // "cuda:0": kernels for this device of the server's; empty: for the CPU.
  std::string device{};
  ModelRequest model{};
  bool resume = false;  // go on with the store's unfinished session of this Definition, if there is one
};

struct SessionEvent {
  enum class Kind : uint8_t {
    kProgress,  // best so far, counters
    kKernel,    // a verified kernel was committed to the cache: `record_file`
    kDone,      // the session ended: `reason`
    kFailed,    // the worker died or refused: `reason`
  };
  Kind kind = Kind::kProgress;
  std::string record_file;  // file name in the cache directory
  std::string kernel_name;
  double best_speedup = 0;                 // traffic-weighted, best candidate so far by its screen
  double committed_speedup = 0;            // traffic-weighted, with every kernel committed so far; 0: none
  int kernels = 0;                         // committed so far
  int tried = 0;                           // candidates judged
  std::array<int, kGateCount> rejected{};  // by gate
  double seconds_used = 0;
  int questions = 0, programs = 0;  // asked of a model; programs that came of it
  double model_usd = 0;
  std::string reason;         // kDone: "target reached", "wall time", "stagnation", ...; kFailed: what failed
  std::string warning;        // of the end: the first trouble that did not end the session; empty: none
  std::string model_trouble;  // of the end: the first trouble with the model; empty: none
  std::string spent;          // of the end: where the evaluator's time went; empty: not known
};

// The end of a session in one line, for people: "wall time (model: no key); 3 s on the device".
std::string last_words(const SessionEvent& e);

class PermitSource;

struct WorkerOptions {
  std::string program;            // the `niche` program (or the server's own binary, re-executed)
  std::vector<std::string> args;  // usually {"worker"}
  int nice = 19;
  bool idle_scheduling = true;                  // SCHED_IDLE
  int64_t memory_bytes_max = int64_t{4} << 30;  // data of each of its processes
  int handshake_timeout_ms = 20'000;  // a worker that links libtorch takes about a second under load
  // Who grants the device time that a session for a device asks for; answered inside poll(). Null: no
  // permits.
  PermitSource* permits = nullptr;
};

class WorkerClient {
 public:
  // kNotFound: no such program; kIo: spawn failed; kUnsupported: versions do not shake hands (both are
  // named).
  static dispatch::Result<std::unique_ptr<WorkerClient>> spawn(const WorkerOptions& options);
  virtual ~WorkerClient() = default;  // kills the worker with all its children and reaps it

  virtual dispatch::Status start(const SessionRequest& request) = 0;
  // The next event, or nothing within the timeout. After kDone or kFailed: nothing more.
  virtual std::optional<SessionEvent> poll(int timeout_ms) = 0;
  // SIGSTOP / SIGCONT of the worker and all its children: serving takes the machine back at once. Time in
  // pause does not count against the session's wall limit.
  virtual dispatch::Status pause() = 0;
  virtual dispatch::Status resume() = 0;
  // Asks the session to end at the next candidate; the destructor ends it at once.
  virtual dispatch::Status stop() = 0;
  virtual int pid() const = 0;
};

// Finds the worker program: `configured`, else beside libniche, else on PATH. kNotFound lists where it looked.
dispatch::Result<std::string> find_worker_program(const std::string& configured);

}  // namespace niche::evolve
