// niche_tensor_parallel_check OUT.json [--cpu] [--versions N] [--only swaps|kill|alone]: a tensor-parallel group of two
// ranks, each a process on a GPU of its own (--cpu: on the host, with a stand-in for NCCL):
//   swaps  kernels that issue different collectives are swapped under load by N numbered versions: both ranks must run
//          the same kernel in every step, and no step may wait for ever
//   kill   the same, and rank 1 is killed three times: communicators are given up, it is started again, and goes on
//          with the version that the other serves; graphs are captured again
//   alone  the same calls without a group: the ranks disagree, and a watchdog ends it
// The ranks' logs are compared step by step. Each section has a time limit of its own; OUT.json is written after each.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/cuda/two_gpus/rank.h"

extern char** environ;

namespace {

using namespace niche::two_gpus;
using json = nlohmann::json;
using Steady = std::chrono::steady_clock;

double seconds_since(Steady::time_point t) {
  return std::chrono::duration<double>(Steady::now() - t).count();
}

struct Section {
  std::string name;
  uint64_t versions = 0;
  int kills = 0;
  bool grouped = true;
  double limit_s = 120, stalled_s = 40;  // of all of it; without a step of either rank
};

class Run {
 public:
  Run(const char* self, const Section& s, bool cuda) : self_(self), s_(s), cuda_(cuda) {
    const std::string base = "/dev/shm/niche_two_gpus." + std::to_string(::getpid()) + "." + s.name;
    stage_path_ = base + ".stage", board_path_ = base + ".board";
    (void)::unlink(board_path_.c_str());
    std::string why;
    stage_ = map_stage(stage_path_, true, &why);
    if (stage_ == nullptr) {
      std::fprintf(stderr, "%s\n", why.c_str());
      std::exit(1);
    }
  }
  ~Run() {
    for (const pid_t p : pids_)
      if (p > 0) ::kill(p, SIGKILL), ::waitpid(p, nullptr, 0);
    (void)::unlink(stage_path_.c_str());
    (void)::unlink(board_path_.c_str());
  }

  json run() {
    const auto start = Steady::now();
    for (int r = 0; r < kRanks; ++r) start_rank(r, 1);
    auto progress_at = Steady::now();
    uint64_t progress = 0, kill_at = s_.versions / static_cast<uint64_t>(s_.kills + 1);
    int kills = 0;
    uint32_t session = 1;
    std::string end;
    json sessions = json::array();
    while (end.empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const uint64_t steps = stage_->rank[0].steps + stage_->rank[1].steps;
      if (steps != progress) progress = steps, progress_at = Steady::now();
      for (int r = 0; r < kRanks; ++r) reap(r);
      if (pids_[0] == 0 && pids_[1] == 0)
        end = status_[0] == 0 && status_[1] == 0 ? "finished" : "a rank failed";
      if (end.empty() && (status_[0] > 0 || status_[1] > 0)) end = "a rank failed";
      if (end.empty() && kills < s_.kills && stage_->rank[0].version >= kill_at &&
          stage_->rank[1].ready == session) {
        // In the middle of whatever it does.
        ::kill(pids_[1], SIGKILL);
        ::waitpid(pids_[1], nullptr, 0);
        sessions.push_back({{"killed_at_step", stage_->rank[1].entered.load()},
                            {"version_then", stage_->rank[1].version.load()}});
        ++kills;
        kill_at += s_.versions / static_cast<uint64_t>(s_.kills + 1);
        stage_->dead_session = session++;
        start_rank(1, session);
        progress_at = Steady::now();
      }
      if (!sessions.empty() && !sessions.back().contains("restart_ms") && stage_->rank[0].ready == session &&
          stage_->rank[0].restart_us != last_restart_us_) {
        last_restart_us_ = stage_->rank[0].restart_us;
        sessions.back()["restart_ms"] = last_restart_us_ / 1000.0;
        sessions.back()["abort_ms"] = stage_->rank[0].abort_us / 1000.0;
        sessions.back()["resumed_at_step"] = stage_->first_step.load();
      }
      if (end.empty() && progress > 0 && seconds_since(progress_at) > s_.stalled_s) end = "stuck";
      if (end.empty() && seconds_since(start) > s_.limit_s) end = "out of time";
    }
    if (end == "stuck" || end == "out of time") {
      // The watchdog: both give their communicators up and leave.
      stage_->stuck = 1;
      const auto told = Steady::now();
      while (seconds_since(told) < 15 && (pids_[0] != 0 || pids_[1] != 0)) {
        for (int r = 0; r < kRanks; ++r) reap(r);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    json j = compare();
    j["end"] = end;
    j["seconds"] = seconds_since(start);
    j["kills"] = sessions;
    for (int r = 0; r < kRanks; ++r) {
      const Stage::Rank& k = stage_->rank[r];
      j["ranks"].push_back({{"exit", pids_[r] != 0 ? "had to be killed" : std::to_string(status_[r])},
                            {"steps", k.steps.load()},
                            {"version", k.version.load()},
                            {"switches", k.swaps.load()},
                            {"dropped", k.dropped.load()},
                            {"waits", k.waits.load()},
                            {"lost_steps", k.lost_steps.load()},
                            {"graph_captures", k.captures.load()},
                            {"communicators_given_up", k.aborted.load()},
                            {"answers_checked", k.checked.load()},
                            {"wrong", k.wrong.load()},
                            {"problem", std::string(k.problem)}});
    }
    return j;
  }

 private:
  void start_rank(int rank, uint32_t session) {
    std::vector<std::string> args = {self_,
                                     "--rank",
                                     std::to_string(rank),
                                     "--stage",
                                     stage_path_,
                                     "--board",
                                     board_path_,
                                     "--session",
                                     std::to_string(session),
                                     "--versions",
                                     std::to_string(s_.versions)};
    if (!cuda_) args.push_back("--cpu");
    if (!s_.grouped) args.push_back("--alone");
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    std::vector<std::string> env;
    for (char** e = environ; *e != nullptr; ++e)
      if (std::strncmp(*e, "CUDA_VISIBLE_DEVICES=", 21) != 0) env.emplace_back(*e);
    env.push_back("CUDA_VISIBLE_DEVICES=" + std::to_string(rank));
    for (const char* keep :
         {"NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "NVSHMEM_DISABLE_NVLS=1"})
      env.emplace_back(keep);
    std::vector<char*> envp;
    for (std::string& e : env) envp.push_back(e.data());
    envp.push_back(nullptr);
    status_[rank] = 0;
    if (::posix_spawn(&pids_[rank], self_.c_str(), nullptr, nullptr, argv.data(), envp.data()) != 0) {
      std::fprintf(stderr, "cannot start rank %d\n", rank);
      std::exit(1);
    }
  }
  void reap(int r) {
    int status = 0;
    if (pids_[r] == 0 || ::waitpid(pids_[r], &status, WNOHANG) != pids_[r]) return;
    pids_[r] = 0;
    status_[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // Steps that both ranks have in their logs, and came to an end on both.
  json compare() const {
    std::map<uint32_t, StepRecord> first;
    const auto entries = [&](int r) {
      return std::span<const StepRecord>(stage_->log[r], stage_->rank[r].steps.load());
    };
    for (const StepRecord& s : entries(0))
      if (s.done == 1) first[s.step] = s;
    uint64_t common = 0, differ = 0, swaps = 0, replays = 0;
    std::map<std::string, uint64_t> by_kernel;
    uint32_t version = 0, first_difference = 0;
    for (const StepRecord& s : entries(1)) {
      const auto at = first.find(s.step);
      if (s.done != 1 || at == first.end()) continue;
      ++common;
      const StepRecord& o = at->second;
      if (o.version != s.version || std::memcmp(o.kernels, s.kernels, 2) != 0 || o.replayed != s.replayed ||
          o.session != s.session) {
        if (differ++ == 0) first_difference = s.step;
      }
      swaps += s.version != version;
      version = s.version;
      replays += s.replayed;
      ++by_kernel["linear " + std::to_string(s.kernels[0])];
      ++by_kernel["pffn " + std::to_string(s.kernels[1])];
    }
    json j{{"steps_compared", common},
           {"steps_that_differ", differ},
           {"swaps", swaps},
           {"graph_replays", replays},
           {"calls_by_kernel", by_kernel}};
    if (differ != 0) j["first_difference_at_step"] = first_difference;
    // What each of them was in when it went no further.
    for (int r = 0; r < kRanks; ++r)
      if (const auto all = entries(r); !all.empty() && all.back().done != 1)
        j["last"].push_back({{"rank", r},
                             {"step", all.back().step},
                             {"version", all.back().version},
                             {"linear", all.back().kernels[0]},
                             {"pffn", all.back().kernels[1]}});
    return j;
  }

  const std::string self_;
  const Section s_;
  const bool cuda_;
  std::string stage_path_, board_path_;
  Stage* stage_ = nullptr;
  pid_t pids_[kRanks] = {};
  int status_[kRanks] = {};
  uint64_t last_restart_us_ = 0;
};

bool good(const Section& s, const json& j) {
  uint64_t wrong = 0, checked = 0;
  for (const json& r : j["ranks"])
    wrong += r["wrong"].get<uint64_t>(), checked += r["answers_checked"].get<uint64_t>();
  if (!s.grouped)
    // Watched until it is stuck, or answers are wrong: which of them depends on what the collectives make of each other.
    return (j["end"] == "stuck" || wrong != 0) && (j["steps_that_differ"] != 0 || j.contains("last"));
  return j["end"] == "finished" && j["steps_that_differ"] == 0 &&
         j["swaps"].get<uint64_t>() * 2 > s.versions && wrong == 0 && checked > 0 &&
         j["kills"].size() == static_cast<size_t>(s.kills);
}

int run(int argc, char** argv) {
  RankOptions rank;
  rank.cuda = true;
  std::string out, stage, only;
  uint64_t versions = 10'000;
  bool is_rank = false;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto next = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (a == "--rank")
      is_rank = true, rank.rank = std::atoi(next().c_str());
    else if (a == "--stage")
      stage = next();
    else if (a == "--board")
      rank.board = next();
    else if (a == "--session")
      rank.session = static_cast<uint32_t>(std::atoi(next().c_str()));
    else if (a == "--versions")
      versions = std::strtoull(next().c_str(), nullptr, 10);
    else if (a == "--only")
      only = next();
    else if (a == "--cpu")
      rank.cuda = false;
    else if (a == "--alone")
      rank.grouped = false;
    else if (out.empty() && a.rfind("--", 0) != 0)
      out = a;
    else
      return std::fprintf(stderr, "unknown argument '%s'\n", a.c_str()), 2;
  }
  if (is_rank) {
    std::string why;
    Stage* at = map_stage(stage, false, &why);
    if (at == nullptr) return std::fprintf(stderr, "%s\n", why.c_str()), 2;
    rank.versions = versions;
    return serve_rank(at, rank);
  }
  if (out.empty())
    return std::fprintf(
               stderr,
               "usage: niche_tensor_parallel_check OUT.json [--cpu] [--versions N] [--only SECTION]\n"),
           2;
  const Section sections[] = {{"swaps", versions, 0, true, 150, 40},
                              {"kill", std::max<uint64_t>(versions / 10, 40), 3, true, 120, 60},
                              {"alone", 1'000'000'000, 0, false, 60, 4}};
  json all;
  all["where"] = rank.cuda ? "two GPUs, NCCL" : "the host, a stand-in for NCCL";
  bool fine = true;
  for (const Section& s : sections) {
    if (!only.empty() && only != s.name) continue;
    json j = Run("/proc/self/exe", s, rank.cuda).run();
    j["good"] = good(s, j);
    fine = fine && j["good"].get<bool>();
    std::printf(
        "%-6s %s: %s after %.1f s; %llu steps compared, %llu differ, %llu swaps, %llu graph replays\n",
        s.name.c_str(), j["good"].get<bool>() ? "good" : "BAD", j["end"].get<std::string>().c_str(),
        j["seconds"].get<double>(), j["steps_compared"].get<unsigned long long>(),
        j["steps_that_differ"].get<unsigned long long>(), j["swaps"].get<unsigned long long>(),
        j["graph_replays"].get<unsigned long long>());
    for (const json& r : j["ranks"]) std::printf("         %s\n", r.dump().c_str());
    for (const json& k : j["kills"]) std::printf("         %s\n", k.dump().c_str());
    std::fflush(stdout);
    all["sections"][s.name] = std::move(j);
    std::ofstream(out) << all.dump(1) << '\n';
  }
  return fine ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return run(argc, argv); }
