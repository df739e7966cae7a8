// The process of a DeviceProbe over the fake driver: its kernels do what their symbols say. One argument in,
// one out, n[0] floats each.
#include <unistd.h>

#include <cstring>

#include "dispatch/devices/cuda/cuda_plan.h"
#include "evolve/probe/probe_main.h"
#include "tests/dispatch/devices/cuda/fake_driver.h"

namespace {

using namespace niche::dispatch;
using fake_cuda::Launch;
using fake_cuda::state;

NicheCudaArgs args_of(const Launch& l) {
  NicheCudaArgs a;
  std::memcpy(&a, l.parameter.data(), sizeof a);
  return a;
}
void twice(const Launch& l) {
  const NicheCudaArgs a = args_of(l);
  for (long long i = 0; i < a.n[0]; ++i)
    static_cast<float*>(a.p[1])[i] = 2 * static_cast<const float*>(a.p[0])[i];
}
// Does `harm` on top of the right answer, once there is a problem.
auto with(void (*harm)(const NicheCudaArgs&)) {
  return [harm](const Launch& l) {
    twice(l);
    if (args_of(l).n[0] > 0) harm(args_of(l));
  };
}

}  // namespace

int main(int argc, char** argv) {
  fake_cuda::reset();
  auto& s = state();
  if (argc > 1 && std::strcmp(argv[1], "no_device") == 0) s.devices = 0;
  if (argc > 1 && std::strcmp(argv[1], "silent") == 0)
    for (;;) ::pause();
  s.bodies = {
      {"twice", twice},
      {"hangs", with([](const NicheCudaArgs&) { state().hung = true; })},
      {"hangs_when_loaded", [](const Launch&) { state().hung = true; }},
      {"faults", with([](const NicheCudaArgs&) { state().lost = CUDA_ERROR_ILLEGAL_ADDRESS; })},
      {"past_end", with([](const NicheCudaArgs& a) { static_cast<float*>(a.p[1])[a.n[0]] = 1; })},
      {"before", with([](const NicheCudaArgs& a) { static_cast<float*>(a.p[1])[-2] = 1; })},
      {"changes_input", with([](const NicheCudaArgs& a) { static_cast<float*>(a.p[0])[3] += 1; })},
      {"exits", with([](const NicheCudaArgs&) { ::_exit(3); })},
      // Another frame than the protocol's: what a process says that a candidate has got hold of.
      {"babbles", with([](const NicheCudaArgs&) { (void)!::write(3, "\xff\xff\xff\xff garbage", 12); })},
  };
  for (const auto& [symbol, body] : s.bodies) s.symbols.insert(symbol);
  return niche::evolve::probe_main(
      {[] { return Result<std::shared_ptr<const CudaDriver>>(fake_cuda::driver()); }});
}
