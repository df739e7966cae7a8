// bench calls: what niche adds to a call, beside the call itself made directly, in one run.
//
//   calls [--json FILE] [--rounds N]
//
// Subjects are visited in a fresh random order each round; a figure is the median over rounds of a batch's
// time a call.
//   C++ API: OpHandle::call on DLPack views of a kernel that does nothing, against the bare function pointer.
//   at::Tensor skin, library serves: torch_call against the very same ATen expression made directly.
//   at::Tensor skin, kernel serves: torch_call of a kernel that does nothing, against at::empty plus the bare
//   pointer.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "runtime/core.h"
#include "runtime/handle_state.h"
#include "runtime/torch/torch.h"

namespace {

using namespace niche;            // NOLINT: a program of its own
using namespace niche::dispatch;  // NOLINT

constexpr int64_t kM = 4, kN = 64;
constexpr int kBatch = 2000;

void nothing(const NicheKernelArgs* args, long, long) { asm volatile("" ::"r"(args) : "memory"); }

// A kernel as the loader would make it, whose code does nothing.
std::shared_ptr<const Kernel> empty_kernel(const OpHandle& h) {
  auto k = std::make_shared<Kernel>();
  k->launch = [](const Kernel& kernel, CallFrame& frame, const Executor&) {
    kernel.entries[0](frame.args, 0, frame.args->n[0]);
  };
  k->entries[0] = nothing;
  k->phase_count = 1;
  k->kind = KernelKind::kCpu;
  k->id = next_kernel_id();
  k->name = "nothing";
  k->definition = h.state()->definition();
  k->guard.var_count = 1;
  k->guard.var[0] = {1, 1 << 20, 1};
  return k;
}

void publish(Runtime& runtime, const OpHandle& h) {
  Dispatcher& d = runtime.dispatcher();
  const auto kernel = empty_kernel(h);
  auto route = *d.make_route(
      {kernel->definition, d.fallback(h.id(), 0), kernel, nullptr, RolloutState::kIncumbent, 0, "bench"});
  for (int alignment = 2; alignment <= 6; ++alignment)
    (void)d.publisher().put({h.state()->site().prefix(), LayoutClass::plain(alignment), {kM}}, route);
  (void)d.publisher().commit();
}

struct Subject {
  std::string name;
  std::function<void()> batch;
  std::vector<double> ns{};
  double median() {
    std::nth_element(ns.begin(), ns.begin() + static_cast<std::ptrdiff_t>(ns.size() / 2), ns.end());
    return ns[ns.size() / 2];
  }
};

}  // namespace

int main(int argc, char** argv) {
  std::string json_file;
  int rounds = 101;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--json") json_file = argv[i + 1];
    if (std::string(argv[i]) == "--rounds") rounds = std::max(1, std::atoi(argv[i + 1]));
  }
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  RuntimeConfig config = torch_config();
  config.evolve = false;
  auto runtime = *Runtime::create(std::move(config));
  const auto op = [&](const char* name) { return *runtime->op(name, kF32, {{"N", kN}}); };
  // Sites of one Definition share routes: the operators below are evolved or not as a whole.
  const OpHandle evolved = op("silu_mul"), library = op("softmax");
  publish(*runtime, evolved);

  const at::Tensor a = at::randn({kM, kN}), b = at::randn({kM, kN});
  at::Tensor y = at::empty({kM, kN});
  int64_t shape[] = {kM, kN};
  const auto view = [&](const at::Tensor& t) {
    DLTensor d{};
    d.data = t.data_ptr();
    d.device = {kDLCPU, 0};
    d.ndim = 2;
    d.shape = shape;
    d.dtype = niche::kF32;
    return d;
  };
  const DLTensor args[] = {view(a), view(b), view(y)};
  void* pointers[] = {a.data_ptr(), b.data_ptr(), y.data_ptr()};
  const long extents[] = {kM, kN};
  const NicheKernelArgs abi{pointers, extents, nullptr, nullptr, nullptr};
  NicheKernelFn volatile pointer = nothing;

  std::vector<Subject> subjects;
  const auto add = [&](const char* name, auto call) {
    subjects.push_back({name, [call] {
                          for (int i = 0; i < kBatch; ++i) call();
                        }});
  };
  add("bare function pointer", [&] { pointer(&abi, 0, kM); });
  add("OpHandle::call, kernel", [&] { (void)evolved.call(args); });
  add("at::softmax", [&] { (void)at::softmax(a, 1); });
  add("torch_call softmax, library", [&] { (void)torch_call(library, a); });
  add("at::empty + bare pointer", [&] {
    const at::Tensor out = at::empty({kM, kN});
    pointers[2] = out.data_ptr();
    pointer(&abi, 0, kM);
  });
  add("torch_call silu_mul, kernel", [&] { (void)torch_call(evolved, a, b); });
  const auto scope = [&](uint64_t id) { const RequestScope s(runtime->dispatcher(), {.id = id}); };
  add("RequestScope, open and close", [&] { scope(7); });

  std::mt19937_64 random(std::random_device{}());
  std::vector<size_t> order(subjects.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (int round = 0; round < rounds + 3; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      const auto start = std::chrono::steady_clock::now();
      subjects[i].batch();
      const double ns =
          std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kBatch;
      if (round >= 3) subjects[i].ns.push_back(ns);
    }
  }
  nlohmann::json rows = nlohmann::json::array();
  for (Subject& s : subjects) {
    std::printf("%-32s %8.1f ns\n", s.name.c_str(), s.median());
    rows.push_back({{"subject", s.name}, {"ns", s.median()}});
  }
  const auto more = [&](const char* what, size_t with, size_t without, double aim) {
    const double ns = subjects[with].median() - subjects[without].median();
    std::printf("%-32s %8.1f ns  (aim: at most %.0f)\n", what, ns, aim);
    rows.push_back({{"subject", what}, {"ns", ns}, {"aim_ns", aim}});
  };
  more("dispatch, C++ API", 1, 0, 40);
  more("skin over ATen, library serves", 3, 2, 150);
  more("skin over at::empty, kernel serves", 5, 4, 150);
  if (!json_file.empty()) std::ofstream(json_file) << nlohmann::json{{"rows", rows}}.dump(1) << '\n';
  return 0;
}
