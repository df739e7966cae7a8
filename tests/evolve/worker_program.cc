// The program that worker tests start. Its first argument says what it is:
//   worker [ms]   an honest worker: toy operator, toy family, evaluator without a machine; each screen takes
//   `ms` silent garbage huge old half chatter exit3 offspring   workers that misbehave, each in its own way
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "evolve/worker/frame_channel.h"
#include "evolve/worker/protocol.h"
#include "evolve/worker/worker_main.h"
#include "tests/evolve/fake_evaluator.h"
#include "tests/evolve/toy_environment.h"
#include "tests/evolve/toy_family.h"
#include "tests/evolve/toy_op.h"

namespace {

using namespace niche::evolve;  // NOLINT: a test's program
using niche::evolve::worker::FrameChannel;

// Keeps a core busy for a while, as an evaluator would; ends early when told to.
void work(int ms, const std::function<bool()>& keep_going) {
  const niche::dispatch::SystemClock clock;
  const int64_t end = clock.now_ns() + int64_t{ms} * 1'000'000;
  while (clock.now_ns() < end && (!keep_going || keep_going())) {
  }
}

class SlowEvaluator final : public Evaluator {
 public:
  SlowEvaluator(FakeWorld& world, EvaluatorSpec spec, EvaluatorOptions options, int ms)
      : keep_going_(options.keep_going), fake_(world, std::move(spec), std::move(options)), ms_(ms) {}
  niche::dispatch::Result<std::vector<ProblemBaseline>> baselines() override { return fake_.baselines(); }
  std::vector<Verdict> screen(std::span<const Candidate> candidates) override {
    work(ms_, keep_going_);
    return fake_.screen(candidates);
  }
  Judgement judge(const Candidate& c) override {
    work(ms_, keep_going_);
    return fake_.judge(c);
  }
  std::string describe() const override { return "slow"; }

 private:
  std::function<bool()> keep_going_;
  FakeEvaluator fake_;
  int ms_;
};

int honest(int argc, char** argv) {
  niche::dispatch::OpRegistry ops;
  FamilyRegistry families;
  if (!ops.add(std::make_shared<testing_ops::ToyOp>()).ok()) return 1;
  families.add(std::make_shared<testing_ops::ToyFamily>());
  FakeWorld world;
  world.cost = [](const FakeWorld::Params& p, const SeenProblem&) {
    return 0.5 + 0.01 * p.at("rows") + 0.005 * (32 - p.at("unroll")) + 0.02 * p.at("back");
  };
  const int ms = argc > 2 ? std::atoi(argv[2]) : 0;
  WorkerHooks hooks;
  hooks.environment =
      [](const SessionRequest&) -> niche::dispatch::Result<niche::kernels_cache::Environment> {
    return testing_ops::toy_environment();
  };
  if (std::string(argv[1]) == "judge") {
    hooks.make_evaluator = make_evaluator;
    return worker_main(argc, argv, ops, families, hooks);
  }
  hooks.make_evaluator =
      [&](EvaluatorSpec spec,
          EvaluatorOptions options) -> niche::dispatch::Result<std::unique_ptr<Evaluator>> {
    return std::unique_ptr<Evaluator>(
        std::make_unique<SlowEvaluator>(world, std::move(spec), std::move(options), ms));
  };
  return worker_main(argc, argv, ops, families, hooks);
}

void put(const std::string& bytes) { (void)!::send(3, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
[[noreturn]] void wait_for_ever() {
  for (;;) ::pause();
}

int misbehave(const std::string& how) {
  if (how == "silent") wait_for_ever();
  if (how == "exit3") return 3;
  if (how == "garbage") put(std::string("\x05\0\0\0hello", 9));
  if (how == "huge") put("\xff\xff\xff\xff and more");
  niche::evolve::worker::Hello hello = niche::evolve::worker::own_hello();
  if (how == "old") hello.protocol = 0, hello.version = "0.0.1";
  FrameChannel channel(3);
  if (how != "garbage" && how != "huge") {
    // Read before it ends: a socket closed with unread bytes takes back what was sent.
    (void)channel.receive(10'000);
    (void)channel.send(niche::evolve::worker::encode_hello(hello), 1000);
  }
  if (how == "half") {
    put(std::string("\x40\0\0\0{\"type\"", 11));
    return 0;
  }
  // For a device: asks for a permit, then asks again, gives another one back, or ends with it.
  if (how.starts_with("permit")) {
    (void)channel.send(niche::evolve::worker::encode_ask(1000), 1000);
    (void)channel.receive(10'000);  // the request
    (void)channel.receive(10'000);  // the permit
    if (how == "permit_twice") (void)channel.send(niche::evolve::worker::encode_ask(1000), 1000);
    if (how == "permit_another")
      (void)channel.send(niche::evolve::worker::encode_return({99, 0, 0}, false), 1000);
    if (how == "permit_returned") {
      (void)channel.send(niche::evolve::worker::encode_return({7, 1000, 0}, false), 1000);
      (void)channel.send(niche::evolve::worker::encode_ask(1000), 1000);
      (void)channel.receive(10'000);
      (void)channel.send(niche::evolve::worker::encode_return({8, 1000, 0}, true), 1000);
    }
    if (how == "permit_kept" || how == "permit_returned") return 3;
  }
  if (how == "chatter") (void)channel.send("{\"type\":\"paused\",\"seconds\":1}", 1000);
  if (how == "offspring") {
    const pid_t child = ::fork();
    if (child == 0) {
      wait_for_ever();
    }
    ::setpgid(child, child);  // a group of its own, as a compiler's is
    SessionEvent e;
    e.reason = std::to_string(child);
    (void)channel.send(niche::evolve::worker::encode_event(e), 1000);
  }
  wait_for_ever();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  return what == "worker" || what == "judge" ? honest(argc, argv) : misbehave(what);
}
