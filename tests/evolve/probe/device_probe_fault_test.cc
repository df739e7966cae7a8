// A candidate that hangs, faults, or writes where it must not costs its process and nothing else.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstring>

#include "evolve/probe/device_probe.h"
#include "tests/dispatch/devices/cuda/fake_driver.h"

namespace niche::evolve {
namespace {

using dispatch::ArgRole;

constexpr int64_t kN = 1000;

ProbeJob job(const std::string& symbol, int timed = 0) {
  ProbeJob j;
  j.name = "twice." + symbol;
  j.cubin = dispatch::fake_cuda::cubin();
  j.plan.phases = {{symbol, {{0, 256}}, 256, 0, 0, 1, false}};
  j.axes = {kN};
  std::vector<float> x(kN);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.5F;
  std::vector<uint8_t> bytes(x.size() * 4);
  std::memcpy(bytes.data(), x.data(), bytes.size());
  j.args = {{ArgRole::kIn, kN * 4, bytes}, {ArgRole::kOut, kN * 4, {}}};
  j.timed_launches = timed;
  return j;
}

class DeviceProbeTest : public ::testing::Test {
 protected:
  ProbeOptions options(std::vector<std::string> args = {}) {
    ProbeOptions o;
    o.program = NICHE_TEST_PROBE;
    o.args = std::move(args);
    o.memory_bytes = 1 << 20;
    return o;
  }
  dispatch::SystemClock clock;
  Traffic traffic;
  PermitGate gate{{.burst_ns = 300'000, .duty = 1.0}, clock, [this] { return traffic; }};
  DeviceProbe probe{options(), gate, clock};

  void expect_right(const ProbeOutcome& o) {
    ASSERT_EQ(o.end, ProbeEnd::kRan) << o.text;
    ASSERT_EQ(o.outputs.size(), 2u);
    std::vector<float> y(kN);
    ASSERT_EQ(o.outputs[1].size(), y.size() * 4);
    std::memcpy(y.data(), o.outputs[1].data(), y.size() * 4);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], static_cast<float>(i)) << i;
  }
};

TEST_F(DeviceProbeTest, KernelRunsInAnotherProcessUnderPermitsAndIsTimed) {
  const ProbeOutcome o = probe.run(job("twice", 40));
  expect_right(o);
  EXPECT_EQ(o.launch_us.size(), 40u);
  EXPECT_DOUBLE_EQ(o.launch_us[0], static_cast<double>(0.0125f) * 1e3);
  EXPECT_FALSE(o.candidate_at_fault());
  // One to load and to launch, one for the timed ones, since the fake device's time costs none: copies need no permit.
  EXPECT_GE(o.bursts, 2);
  EXPECT_LE(o.bursts, 7) << "12.5 us and 20 on the host: nine launches a burst of 300 us at least";
  EXPECT_EQ(gate.counts().granted, static_cast<uint64_t>(o.bursts));
  EXPECT_GT(gate.counts().used_ns, 0);
  EXPECT_EQ(probe.device(), "Fake GPU sm_90 132 SM 1980 MHz memory 3201 MHz x 6144 bit 139 GiB");
  const int pid = probe.pid();
  EXPECT_GT(pid, 0);
  expect_right(probe.run(job("twice")));
  EXPECT_EQ(probe.pid(), pid) << "a good candidate's process serves the next one";
}

TEST_F(DeviceProbeTest, HungLaunchIsKilledAndNamedAndTheSessionGoesOn) {
  expect_right(probe.run(job("twice")));
  const int pid = probe.pid();
  const ProbeOutcome o = probe.run(job("hangs"));
  EXPECT_EQ(o.end, ProbeEnd::kHung);
  EXPECT_NE(o.text.find("launch of twice.hangs was not done"), std::string::npos) << o.text;
  EXPECT_NE(o.text.find("after its permit of 300 us"), std::string::npos) << o.text;
  EXPECT_NE(o.text.find("process " + std::to_string(pid) + " was killed by signal 9"), std::string::npos)
      << o.text;
  EXPECT_EQ(::kill(pid, 0), -1) << "run() returned before the process was gone";
  const Verdict v = o.verdict();
  EXPECT_EQ(v.status, VerdictStatus::kRejected);
  EXPECT_EQ(v.failed_gate, Gate::kSmoke);
  EXPECT_TRUE(v.reason.starts_with("hung: ")) << v.reason;
  EXPECT_EQ(probe.counts().hung, 1);
  EXPECT_EQ(gate.counts().revoked, 1u);
  expect_right(probe.run(job("twice")));
  EXPECT_EQ(probe.counts().started, 2);
  EXPECT_NE(probe.pid(), pid);
}

TEST_F(DeviceProbeTest, KernelThatHangsWithoutAProblemIsFoundWhileItIsLoaded) {
  const ProbeOutcome o = probe.run(job("hangs_when_loaded"));
  EXPECT_EQ(o.end, ProbeEnd::kHung);
  EXPECT_NE(o.text.find("load and launch without a problem"), std::string::npos) << o.text;
  expect_right(probe.run(job("twice")));
}

TEST_F(DeviceProbeTest, FaultEndsTheContextAndTheProcessWithIt) {
  const ProbeOutcome o = probe.run(job("faults"));
  EXPECT_EQ(o.end, ProbeEnd::kFault);
  EXPECT_NE(o.text.find("cuStreamSynchronize: CUDA_ERROR_FAKE"), std::string::npos) << o.text;
  EXPECT_TRUE(o.verdict().reason.starts_with("fault: ")) << o.verdict().reason;
  EXPECT_EQ(probe.counts().faulted, 1);
  EXPECT_EQ(probe.pid(), 0);
  expect_right(probe.run(job("twice")));
}

TEST_F(DeviceProbeTest, WritesOutsideTheArgumentsAreSeenOnBothSides) {
  const ProbeOutcome past = probe.run(job("past_end"));
  EXPECT_EQ(past.end, ProbeEnd::kOutOfBounds);
  EXPECT_NE(past.text.find("past the end of argument 1"), std::string::npos) << past.text;
  EXPECT_EQ(past.verdict().failed_gate, Gate::kSmoke);
  const int pid = probe.pid();
  const ProbeOutcome before = probe.run(job("before"));
  EXPECT_EQ(before.end, ProbeEnd::kOutOfBounds);
  EXPECT_NE(before.text.find("wrote 8 bytes before argument 1"), std::string::npos) << before.text;
  const ProbeOutcome input = probe.run(job("changes_input"));
  EXPECT_EQ(input.end, ProbeEnd::kOutOfBounds);
  EXPECT_NE(input.text.find("changed input 0 at byte"), std::string::npos) << input.text;
  EXPECT_EQ(probe.counts().out_of_bounds, 3);
  expect_right(probe.run(job("twice")));
  EXPECT_EQ(probe.pid(), pid) << "memory outside an argument is the process's own: it goes on";
}

TEST_F(DeviceProbeTest, WhatTheDriverRefusesIsTheCandidatesAndNotTheProcesss) {
  ProbeJob too_many = job("twice");
  too_many.plan.phases[0].threads = 2048;
  const ProbeOutcome threads = probe.run(too_many);
  EXPECT_EQ(threads.end, ProbeEnd::kRefused);
  EXPECT_NE(threads.text.find("2048 threads"), std::string::npos) << threads.text;
  EXPECT_EQ(threads.verdict().failed_gate, Gate::kBinary);
  ProbeJob cut = job("twice");
  cut.cubin.resize(50);
  EXPECT_EQ(probe.run(cut).end, ProbeEnd::kRefused);
  expect_right(probe.run(job("twice")));
  EXPECT_EQ(probe.counts().started, 1);
}

TEST_F(DeviceProbeTest, ProcessThatEndsOrBabblesIsReplaced) {
  const ProbeOutcome gone = probe.run(job("exits"));
  EXPECT_EQ(gone.end, ProbeEnd::kDied);
  EXPECT_NE(gone.text.find("ended with status 3"), std::string::npos) << gone.text;
  EXPECT_EQ(probe.run(job("babbles")).end, ProbeEnd::kDied);
  expect_right(probe.run(job("twice")));
  EXPECT_EQ(probe.counts().died, 2);
  EXPECT_EQ(gate.counts().revoked, 2u) << "a permit does not stay out with its holder gone";
}

TEST_F(DeviceProbeTest, MachineWithoutADeviceDecidesNothing) {
  DeviceProbe none(options({"no_device"}), gate, clock);
  const ProbeOutcome o = none.run(job("twice"));
  EXPECT_EQ(o.end, ProbeEnd::kUndecided);
  EXPECT_FALSE(o.candidate_at_fault());
  EXPECT_NE(o.text.find("no CUDA device 0"), std::string::npos) << o.text;
  ProbeOptions missing = options();
  missing.program = "/no/such/probe";
  DeviceProbe absent(missing, gate, clock);
  EXPECT_NE(absent.run(job("twice")).text.find("/no/such/probe"), std::string::npos);
  ProbeOptions quick = options({"silent"});
  quick.start_ns = 100'000'000;
  DeviceProbe silent(quick, gate, clock);
  EXPECT_EQ(silent.run(job("twice")).end, ProbeEnd::kUndecided);
}

TEST_F(DeviceProbeTest, BusyServerGivesNoPermitAndTheCandidateIsNotJudged) {
  traffic.opened = 1;  // one request in flight, for ever
  ProbeOptions o = options();
  o.permit_wait_ns = 20'000'000;
  DeviceProbe waiting(o, gate, clock);
  const ProbeOutcome out = waiting.run(job("twice"));
  EXPECT_EQ(out.end, ProbeEnd::kUndecided);
  EXPECT_NE(out.text.find("no permit within 20 ms"), std::string::npos) << out.text;
  EXPECT_EQ(gate.counts().granted, 0u);
  EXPECT_GT(gate.counts().busy, 10u);
}

TEST_F(DeviceProbeTest, JobsOfABatchSharePermitsAndInputs) {
  std::vector<ProbeJob> jobs(6, job("twice"));
  for (size_t i = 0; i < jobs.size(); ++i) jobs[i].name = "twice." + std::to_string(i);
  for (size_t i = 1; i < jobs.size(); ++i) {
    jobs[i].inputs_of = 0;
    jobs[i].args[0].data.clear();
  }
  const auto outcomes = probe.run_all(jobs);
  ASSERT_EQ(outcomes.size(), jobs.size());
  for (const ProbeOutcome& o : outcomes) expect_right(o);
  EXPECT_LT(gate.counts().granted, 8u) << "twelve steps";
  EXPECT_EQ(probe.counts().started, 1);
}

TEST_F(DeviceProbeTest, WhoHangsInABatchIsNamedAndTheOthersRun) {
  const std::vector<ProbeJob> jobs = {job("twice"), job("hangs"), job("twice")};
  const auto outcomes = probe.run_all(jobs);
  expect_right(outcomes[0]);
  EXPECT_EQ(outcomes[1].end, ProbeEnd::kHung);
  EXPECT_NE(outcomes[1].text.find("launch of twice.hangs was not done"), std::string::npos)
      << outcomes[1].text;
  expect_right(outcomes[2]);
  EXPECT_EQ(probe.counts().hung, 1);
  EXPECT_EQ(probe.counts().started, 2);
}

TEST_F(DeviceProbeTest, WhoEndsTheContextOfABatchIsNamedAndTheOthersRun) {
  const std::vector<ProbeJob> jobs = {job("faults"), job("twice"), job("exits"), job("twice")};
  const auto outcomes = probe.run_all(jobs);
  EXPECT_EQ(outcomes[0].end, ProbeEnd::kFault) << outcomes[0].text;
  expect_right(outcomes[1]);
  EXPECT_EQ(outcomes[2].end, ProbeEnd::kDied) << outcomes[2].text;
  EXPECT_NE(outcomes[2].text.find("of twice.exits"), std::string::npos) << outcomes[2].text;
  expect_right(outcomes[3]);
  EXPECT_EQ(probe.counts().started, 3);
}

TEST_F(DeviceProbeTest, ABatchWithAWriteOutOfBoundsIsTakenApart) {
  ProbeJob refused = job("twice");
  refused.plan.phases[0].threads = 2048;
  const std::vector<ProbeJob> jobs = {job("twice"), job("past_end"), refused, job("changes_input"),
                                      job("twice")};
  const auto outcomes = probe.run_all(jobs);
  expect_right(outcomes[0]);
  EXPECT_EQ(outcomes[1].end, ProbeEnd::kOutOfBounds);
  EXPECT_EQ(outcomes[2].end, ProbeEnd::kRefused);
  EXPECT_EQ(outcomes[3].end, ProbeEnd::kOutOfBounds);
  expect_right(outcomes[4]);
  EXPECT_EQ(probe.counts().started, 1);
  EXPECT_EQ(probe.counts().out_of_bounds, 2);
}

TEST_F(DeviceProbeTest, ABatchLargerThanItsMemoryRunsInParts) {
  std::vector<ProbeJob> jobs(40, job("twice"));
  for (ProbeJob& j : jobs) {
    j.args[1].bytes = 60'000;
    j.name += std::to_string(&j - jobs.data());
  }
  const auto outcomes = probe.run_all(jobs);
  for (const ProbeOutcome& o : outcomes) EXPECT_EQ(o.end, ProbeEnd::kRan) << o.text;
}

TEST_F(DeviceProbeTest, JobThatDoesNotFitIsRefusedByItsSize) {
  ProbeJob big = job("twice");
  big.args[1].bytes = 2 << 20;
  EXPECT_NE(probe.run(big).text.find("memory_bytes is 1048576"), std::string::npos);
  ProbeJob torn = job("twice");
  torn.args[0].data.resize(10);
  EXPECT_NE(probe.run(torn).text.find("argument 0 has 10 bytes"), std::string::npos);
}

}  // namespace
}  // namespace niche::evolve
