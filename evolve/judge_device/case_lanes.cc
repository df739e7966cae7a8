#include "evolve/judge_device/case_lanes.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "dispatch/base/hash.h"
#include "evolve/judge/oracle_server.h"

namespace niche::evolve::judge {

using dispatch::ArgRole;
using dispatch::Result;
using dispatch::Status;

class CaseLanes::Lane {
 public:
  Lane(std::shared_ptr<const dispatch::Definition> definition, std::unique_ptr<SharedArena> arena,
       std::unique_ptr<Oracle> oracle)
      : definition_(std::move(definition)), arena_(std::move(arena)), oracle_(std::move(oracle)) {}
  ~Lane() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    ready_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  // What was posted runs in order. Not before all lanes are forked.
  void post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
    ready_.notify_one();
  }

  Made make(const CaseId& id) {
    Made made;
    RunBuffers run;
    const int64_t mark = arena_->mark();
    made.status = place(id, &run);
    if (made.status.ok()) made.status = oracle_->prepare(id, std::span(&run, 1));
    const auto& schema = definition_->schema().args;
    for (size_t i = 0; made.status.ok() && i < schema.size(); ++i) {
      ProbeJob::Arg a;
      a.role = schema[i].role;
      const Placement& p = run.arg[i];
      if (p.region_bytes != 0) {
        a.bytes = p.bytes;
        if (a.role != ArgRole::kOut) a.data.assign(arena_->at(p.at), arena_->at(p.at) + p.bytes);
      }
      made.args.push_back(std::move(a));
    }
    arena_->release(mark);
    return made;
  }
  // A failure is found again, and told, by the check.
  void refer(const CaseId& id, int form) { (void)oracle_->refer(id, form); }

  Result<Finding> check(const CaseId& id, int form, const std::vector<std::vector<uint8_t>>& outputs) {
    RunBuffers run;
    const int64_t mark = arena_->mark();
    Status s = place(id, &run);
    if (s.ok()) s = oracle_->prepare(id, std::span(&run, 1));
    Result<Finding> found = s.ok() ? Finding{} : Result<Finding>(s);
    if (s.ok()) {
      for (size_t i = 0; i < outputs.size(); ++i)
        if (run.arg[i].region_bytes != 0 && !outputs[i].empty())
          std::memcpy(arena_->at(run.arg[i].at), outputs[i].data(), outputs[i].size());
      found = oracle_->check(id, form, std::span(&run, 1), true);
    }
    arena_->release(mark);
    return found;
  }

 private:
  Status place(const CaseId& id, RunBuffers* run) {
    dispatch::Problem problem;
    problem.definition = definition_;
    problem.axes = id.axes;
    for (int i = 0; i < static_cast<int>(definition_->schema().args.size()); ++i) {
      if (!definition_->has_arg(i)) continue;
      auto p = arena_->place(problem.arg_bytes(i), 64, Side::kStart);
      if (!p.ok()) return p.status();
      run->arg[static_cast<size_t>(i)] = *p;
    }
    run->poison = static_cast<uint32_t>(id.seed) & ~1U;
    return {};
  }
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ready_.wait(lock, [&] { return closing_ || !work_.empty(); });
      if (closing_) return;  // what is left is nobody's any more
      const auto work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  const std::shared_ptr<const dispatch::Definition> definition_;
  const std::unique_ptr<SharedArena> arena_;
  const std::unique_ptr<Oracle> oracle_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> work_;
  bool closing_ = false;
  std::thread thread_;
};

CaseLanes::~CaseLanes() = default;

Result<std::unique_ptr<CaseLanes>> CaseLanes::make(std::shared_ptr<const dispatch::OpSpec> op,
                                                   std::shared_ptr<const dispatch::Definition> definition,
                                                   const LaneOptions& options) {
  auto all = std::unique_ptr<CaseLanes>(new CaseLanes());
  const int count = std::max(1, options.lanes);
  for (int i = 0; i < count; ++i) {
    auto arena = SharedArena::make(options.memory_bytes);
    if (!arena.ok()) return arena.status();
    auto oracle = Oracle::make(op, definition, arena->get(), options.child_start, options.cache_bytes / count,
                               options.defences_off);
    if (!oracle.ok()) return oracle.status();
    all->lanes_.push_back(std::make_unique<Lane>(definition, std::move(*arena), std::move(*oracle)));
  }
  return all;
}

int CaseLanes::ahead() const { return 2 * static_cast<int>(lanes_.size()); }

CaseLanes::Lane& CaseLanes::lane_of(const CaseId& id) {
  uint64_t h = dispatch::mix64(id.seed + static_cast<uint64_t>(id.distribution));
  return *lanes_[h % lanes_.size()];
}

std::future<CaseLanes::Made> CaseLanes::begin(const CaseId& id, int form) {
  auto promise = std::make_shared<std::promise<Made>>();
  auto made = promise->get_future();
  Lane& lane = lane_of(id);
  lane.post([&lane, id, form, promise] {
    promise->set_value(lane.make(id));
    if (form >= 0) lane.refer(id, form);
  });
  return made;
}

std::future<Result<Finding>> CaseLanes::check(const CaseId& id, int form,
                                              std::vector<std::vector<uint8_t>> outputs) {
  auto promise = std::make_shared<std::promise<Result<Finding>>>();
  auto found = promise->get_future();
  Lane& lane = lane_of(id);
  lane.post([&lane, id, form, promise, outputs = std::move(outputs)] {
    promise->set_value(lane.check(id, form, outputs));
  });
  return found;
}

}  // namespace niche::evolve::judge
