// CapturedGraph: what niche knows of one device graph that a server captured: which calls are in it, by which
// kernels, and what must live as long as it can be replayed. GraphRegistry: all of them.
//
//   auto graph = dispatcher->graphs().make({.label = "decode B=8", .on_stale = ...}).value();
//   {
//     RequestScope scope(*dispatcher, {.id = 0, .capture = CaptureState::kCaptured, .graph = graph.get()});
//     ... the calls that are captured ...
//   }
//   if (!graph->may_replay()) {                 // before each replay: a load a route that is in it
//     ... destroy the device's graph ...
//     graph->restart();                         // and capture again
//   }
//
// A call under capture gets a *pinned* route: the incumbent, if it is capturable, else the library. No arm of
// a rollout is drawn: a graph replays one choice for ever, which would make a share of 1 % all or nothing.
// Nothing is timed or shadowed. A kernel that needs workspace serves only where the graph has an allocator: a
// thread's workspace belongs to its next call, a graph's to the graph.
//
// Roles: the thread that captures adds uses; the server owns graphs and replays them; the aggregator polls.
// Invariants: (1) kernel, module, Route and workspace of every use live as long as the CapturedGraph; (2) a
// use never changes: a replaced kernel goes on being replayed until the owner captures again, and the owner
// is told; (3) uses are at most uses_max: calls past that get the library; (4) every route whose incumbent is
// replayed is watched, also where two routes share a kernel: either may be the one that is quarantined. Calls
// captured without a handle are held by the registry's own graph, as long as the Dispatcher lives. Progress:
// may_replay() is wait-free; the rest takes a lock. Reclamation: shared_ptr, or restart(). The owner destroys
// the device's graph first. Cost: a captured call 1 µs; may_replay 1 ns a route; poll 1 µs a use.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "dispatch/base/hash.h"
#include "dispatch/base/status.h"
#include "dispatch/fallback_reason.h"
#include "dispatch/problem_key.h"
#include "dispatch/published_kernel.h"
#include "dispatch/route.h"

namespace niche::dispatch {

class Publisher;
class CapturedGraph;

// One problem in a graph, and the kernel that answers it there.
struct GraphUse {
  WideProblem problem;
  std::shared_ptr<const Route> route;  // null: the table had nothing, or a kernel was forced
  std::shared_ptr<const Kernel> kernel;
};

// Why a graph should be captured again.
enum class StaleReason : uint8_t {
  kReplaced,     // another kernel serves this problem now
  kRemoved,      // the library serves it now
  kQuarantined,  // the kernel gave a wrong answer or faulted: do not replay
};
const char* stale_reason_name(StaleReason r);  // "replaced", ...

struct StaleUse {
  WideProblem problem;
  std::string kernel;      // that is replayed
  std::string serves_now;  // name of the kernel that calls outside the graph get
  StaleReason reason = StaleReason::kReplaced;
};
struct StaleGraph {
  std::shared_ptr<const CapturedGraph> graph;
  std::vector<StaleUse> uses;
};

struct GraphOptions {
  std::string label{};  // for the owner: "decode B=8"
  std::string owner{};  // who asks with GraphRegistry::stale(owner)
  // Called by GraphRegistry::poll(), on its thread, once each time that what is stale changes. Graph nodes
  // are swapped between replays, on the thread that owns the graph: hand it over, do not do it here.
  std::function<void(const StaleGraph&)> on_stale{};
  // Workspace on the graph's device, at least so many bytes; null: out of memory. Without: kernels that need
  // none.
  std::function<std::shared_ptr<void>(int64_t bytes)> allocate{};
  uint32_t uses_max = 1u << 16;
};

class CapturedGraph {
 public:
  explicit CapturedGraph(GraphOptions options) : options_(std::move(options)) {}
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  const std::string& label() const { return options_.label; }
  const std::string& owner() const { return options_.owner; }
  // False: a kernel of it was quarantined. Acts from the very next replay on, whatever polls.
  bool may_replay() const;
  // Lets go of all that was held, for another capture under this handle. Requires: the device's graph is gone;
  // nobody captures into this handle, or asks may_replay() of it, meanwhile.
  void restart();
  std::vector<GraphUse> uses() const;
  int64_t workspace_bytes() const;  // of all its blocks

  // ---- for Dispatcher::Call ----

  // Holds what the use needs. kNone: held; else why it cannot be (kGraphFull, kNoWorkspace, kNoKernel where
  // nobody owns the kernel): the library, then.
  FallbackReason hold(const WideProblem& problem, const ProblemKey& key, std::shared_ptr<const Route> route,
                      std::shared_ptr<const Kernel> kernel);
  bool has_allocator() const { return options_.allocate != nullptr; }
  // What hold() reserved: large enough for each kernel held so far. Kernels of one graph share it: they run
  // in the order of its stream.
  struct Workspace {
    void* block = nullptr;
    int64_t bytes = 0;
  };
  Workspace workspace() const;

 private:
  friend class GraphRegistry;
  // State words of routes, in the order in which they came; a full block is followed by another. A word is
  // written before `count` says so.
  struct Words {
    static constexpr uint32_t kPlaces = 62;
    std::atomic<uint32_t> count{0};
    const std::atomic<uint32_t>* of_routes[kPlaces] = {};
    std::atomic<Words*> next{nullptr};
  };
  // What one use is recognised by when the same call is captured again.
  struct Held {
    ProblemKey key;
    const Route* route;
    const Kernel* kernel;
    bool operator==(const Held&) const = default;
  };
  struct HeldHash {
    size_t operator()(const Held& h) const {
      return static_cast<size_t>(mix64(h.key.hash() ^ reinterpret_cast<uintptr_t>(h.route)) ^
                                 reinterpret_cast<uintptr_t>(h.kernel));
    }
  };
  bool reserve(int64_t bytes);
  void watch(const std::atomic<uint32_t>* word);

  const GraphOptions options_;
  mutable std::mutex mutex_;
  std::vector<GraphUse> uses_;
  std::unordered_set<Held, HeldHash> held_;
  std::vector<std::shared_ptr<void>> blocks_;  // the last one is the largest; all may be in the graph
  int64_t block_bytes_ = 0, workspace_bytes_ = 0;
  // Of the routes whose kernels are replayed: grows at its end, so that may_replay() takes no lock.
  Words words_;
  std::vector<std::unique_ptr<Words>> more_words_;  // all but the first
  std::unordered_set<const std::atomic<uint32_t>*> watched_;
  std::atomic<uint64_t> told_{0};  // hash of what on_stale was told last
};

class GraphRegistry {
 public:
  explicit GraphRegistry(uint32_t graphs_max) : graphs_max_(graphs_max) {}

  // kBusy: graphs_max live graphs.
  Result<std::shared_ptr<CapturedGraph>> make(GraphOptions options);
  // Graphs of the owner (empty: of all) that replay what would not be chosen now.
  std::vector<StaleGraph> stale(const Publisher& publisher, const std::string& owner = "") const;
  // Calls on_stale where something changed. From the aggregator's loop. One caller at a time.
  void poll(const Publisher& publisher);
  size_t live() const;

  // Holds what is captured without a handle.
  CapturedGraph& unowned() { return unowned_; }

 private:
  static StaleGraph look(const std::shared_ptr<CapturedGraph>& g, const Publisher& publisher);
  std::vector<std::shared_ptr<CapturedGraph>> graphs() const;

  const uint32_t graphs_max_;
  mutable std::mutex mutex_;
  mutable std::vector<std::weak_ptr<CapturedGraph>> graphs_;
  CapturedGraph unowned_{GraphOptions{.label = "captured without a handle"}};
};

}  // namespace niche::dispatch
