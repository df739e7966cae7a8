// op_forms: every library form of every operator against the form one writes first, at the shapes of
// docs/operators.md. Its answer to "what has a kernel to beat here, and which form is it".
//
//   ./dev bench op_forms [--op NAME] [--threads N] [--rounds N] [--json FILE]
//
// Forms run in random order within a round, on inputs that rotate through memory and values (a branch
// predictor learns repeated ones: bucketize reads 5 times too fast), outputs allocated by each call as in a
// server.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_softmax.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "dispatch/op_spec.h"
#include "runtime/ops/builtin.h"

namespace {

using namespace niche;
using namespace niche::dispatch;
using Clock = std::chrono::steady_clock;

struct Shape {
  const char* op;
  const char* dtype;
  std::vector<std::pair<std::string, int64_t>> axes;
  std::vector<std::pair<std::string, double>> attrs = {};
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const char* type : {"f32", "bf16"}) {
    for (const char* op : {"rms_norm", "fused_add_rms_norm", "fused_add_rms_norm_inplace"})
      for (auto [m, n] : {std::pair<int64_t, int64_t>{1, 4096}, {16, 4096}, {256, 1024}, {4096, 1024}})
        all.push_back({op, type, {{"M", m}, {"N", n}}});
    all.push_back({"layer_norm", type, {{"M", 256}, {"N", 1024}}});
    all.push_back({"rms_norm_backward", type, {{"M", 512}, {"N", 1024}}});
    for (auto [m, n] : {std::pair<int64_t, int64_t>{16, 11008}, {256, 4096}})
      all.push_back({"silu_mul", type, {{"M", m}, {"N", n}}});
    for (auto [m, n] : {std::pair<int64_t, int64_t>{256, 1024}, {4096, 128}, {32, 32000}})
      all.push_back({"softmax", type, {{"M", m}, {"N", n}}});
  }
  for (int64_t b : {1, 8, 64})
    all.push_back({"conv1d", "f32", {{"B", b}, {"L", 200}, {"Ci", 96}, {"Co", 96}, {"K", 3}}});
  all.push_back({"conv1d", "f32", {{"B", 8}, {"L", 512}, {"Ci", 64}, {"Co", 64}, {"K", 3}}});
  all.push_back({"optimized_fm", "f32", {{"B", 1}, {"N", 40}, {"D", 224}, {"K", 448}}});
  all.push_back({"optimized_fm", "f32", {{"B", 64}, {"N", 40}, {"D", 224}, {"K", 448}}});
  all.push_back({"optimized_fm", "f32", {{"B", 16}, {"N", 24}, {"D", 224}, {"K", 2198}}});
  for (int64_t b : {1, 16}) all.push_back({"pffn", "f32", {{"B", b}, {"N", 150}, {"D", 96}, {"K", 192}}});
  all.push_back({"embedding_bag", "f32", {{"V", 100000}, {"D", 64}, {"I", 800}, {"B", 40}}});
  for (int64_t b : {1, 64})
    all.push_back({"selective_state_update", "f32", {{"B", b}, {"D", 1536}, {"S", 16}}});
  for (int64_t v : {200, 2000, 50000}) all.push_back({"map_id", "i64", {{"V", v}, {"T", 10000}}});
  for (auto [b, f, k] : {std::tuple<int64_t, int64_t, int64_t>{64, 2, 2}, {2048, 2, 4}, {2048, 64, 8}})
    all.push_back({"mbdt", "f32", {{"F", f}, {"K", k}, {"B", b}}});
  all.push_back({"batch_event_truncate", "i64", {{"F", 9}, {"U", 256}, {"E", 225000}, {"W", 337500}}});
  all.push_back({"ikbo_linear_compression",
                 "f32",
                 {{"M", 108}, {"N", 64}, {"Kc", 216}, {"Ku", 294}, {"B", 70}, {"U", 1}}});
  return all;
}

// One set of inputs, wrapped as a server would hold them.
class Inputs {
 public:
  Inputs(const OpSpec& op, const Problem& p, uint64_t seed) : problem_(p) {
    const auto& args = p.definition->schema().args;
    memory_.resize(args.size());
    shapes_.resize(args.size());
    for (int i = 0; i < static_cast<int>(args.size()); ++i) {
      const auto k = static_cast<size_t>(i);
      shapes_[k] = p.arg_shape(i);
      if (args[k].role != ArgRole::kOut && p.definition->has_arg(i))
        memory_[k].resize(static_cast<size_t>(p.arg_bytes(i)) + 64);
      tensors_.push_back({memory_[k].empty() ? nullptr : memory_[k].data(),
                          {kDLCPU, 0},
                          static_cast<int>(shapes_[k].size()),
                          p.definition->arg_dtype(i),
                          shapes_[k].data(),
                          nullptr,
                          0});
      pointers_.push_back(tensors_.back().data);
    }
    if (Status s = op.make_inputs(p, 0, seed, tensors_); !s.ok())
      std::fprintf(stderr, "%s\n", s.to_string().c_str());
    for (int64_t e : p.axes) extents_.push_back(e);
    args_ = {pointers_.data(), extents_.data(), p.definition->attrs().data(), nullptr, nullptr};
    native_ = op.wrap(p, pointers_.data());
  }
  size_t bytes() const {
    return std::accumulate(memory_.begin(), memory_.end(), size_t{0},
                           [](size_t s, const auto& m) { return s + m.size(); });
  }
  void run(const OpSpec& op, int form) {
    native_->drop_outputs();
    op.run_fallback(form, {problem_.definition.get(), &args_, native_->get()});
  }

 private:
  Problem problem_;
  std::vector<std::vector<char>> memory_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<DLTensor> tensors_;
  std::vector<void*> pointers_;
  std::vector<long> extents_;
  NicheKernelArgs args_{};
  std::unique_ptr<NativeArgs> native_;
};

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<long>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// Microseconds a call of each form: medians over rounds; in a round the forms come in random order.
std::vector<double> measure(int forms, int rounds, double slice_us,
                            const std::function<void(int form, int i)>& call) {
  std::vector<std::vector<double>> samples(static_cast<size_t>(forms));
  std::vector<int> repeats(static_cast<size_t>(forms), 1), order(static_cast<size_t>(forms));
  const auto timed = [&](int f, int n, int first) {
    const auto t0 = Clock::now();
    for (int i = 0; i < n; ++i) call(f, first + i);
    return std::chrono::duration<double, std::micro>(Clock::now() - t0).count() / n;
  };
  for (int f = 0; f < forms; ++f) {
    timed(f, 3, 0);
    repeats[static_cast<size_t>(f)] = std::max(1, static_cast<int>(slice_us / timed(f, 3, 3)));
  }
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 rng(1);
  for (int r = 0; r < rounds; ++r) {
    std::shuffle(order.begin(), order.end(), rng);
    for (int f : order)
      samples[static_cast<size_t>(f)].push_back(timed(f, repeats[static_cast<size_t>(f)], r * 7));
  }
  std::vector<double> us;
  for (auto& s : samples) us.push_back(median(s));
  return us;
}

// What run_fallback adds over the direct call, on the cheapest ATen operator of the set.
void overhead(const OpSpec& op, int rounds) {
  Problem p;
  p.definition = *Definition::make(op.schema(), kF32, {{"N", 64}});
  p.axes = {1, 64};
  Inputs in(op, p, 1);
  std::vector<float> row(64, 1.0f);
  void* pointers[] = {row.data(), nullptr};
  auto native = op.wrap(p, pointers);
  auto* tensors = static_cast<at::Tensor*>(native->get());
  const c10::InferenceMode guard;
  const NicheKernelArgs args{pointers, nullptr, nullptr, nullptr, nullptr};
  const CallFrame frame{p.definition.get(), &args, tensors};
  const auto us = measure(2, rounds, 3000, [&](int form, int) {
    tensors[1] = at::Tensor();
    if (form == 0)
      tensors[1] = at::_softmax(tensors[0], -1, false);
    else
      op.run_fallback(1, frame);
  });
  std::printf("overhead: at::_softmax 1x64 direct %.0f ns, through run_fallback %.0f ns\n", us[0] * 1e3,
              us[1] * 1e3);
}

std::string cpu_model() {
  std::ifstream f("/proc/cpuinfo");
  for (std::string line; std::getline(f, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace

int main(int argc, char** argv) {
  std::string only, json;
  int threads = 1, rounds = 21;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--op"))
      only = argv[i + 1];
    else if (!std::strcmp(argv[i], "--threads"))
      threads = std::atoi(argv[i + 1]);
    else if (!std::strcmp(argv[i], "--rounds"))
      rounds = std::atoi(argv[i + 1]);
    else if (!std::strcmp(argv[i], "--json"))
      json = argv[i + 1];
    else
      return std::fprintf(stderr, "usage: op_forms [--op NAME] [--threads N] [--rounds N] [--json FILE]\n"),
             2;
  }
  at::set_num_threads(threads);
  OpRegistry registry;
  if (Status s = ops::register_builtin_ops(registry); !s.ok())
    return std::fprintf(stderr, "%s\n", s.to_string().c_str()), 1;
  if (!only.empty() && !registry.find(only))
    return std::fprintf(stderr, "no operator '%s'\n", only.c_str()), 2;
  std::printf("%s, %d thread(s), %d rounds; us a call, * the best form\n", cpu_model().c_str(), threads,
              rounds);

  std::string rows;
  for (const Shape& s : shapes()) {
    if (!only.empty() && only != s.op) continue;
    const OpSpec& op = *registry.find(s.op);
    const OpSchema& schema = *op.schema();
    Problem p;
    std::vector<std::pair<std::string, int64_t>> constants;
    for (const auto& [name, extent] : s.axes) {
      const auto i = static_cast<size_t>(schema.axis_index(name));
      p.axes[i] = extent;
      if (schema.axes[i].kind == AxisKind::kConst) constants.emplace_back(name, extent);
    }
    auto made = Definition::make(op.schema(), *parse_dtype(s.dtype), constants, s.attrs);
    if (!made.ok()) return std::fprintf(stderr, "%s\n", made.status().to_string().c_str()), 1;
    p.definition = *made;
    if (Status st = op.derive_axes(*p.definition, std::span(p.axes.data(), schema.axes.size())); !st.ok())
      return std::fprintf(stderr, "%s\n", st.to_string().c_str()), 1;

    std::vector<std::unique_ptr<Inputs>> sets;
    size_t bytes = 0;
    for (uint64_t seed = 1; sets.size() < 2 || (sets.size() < 64 && bytes < (size_t{4} << 20)); ++seed) {
      sets.push_back(std::make_unique<Inputs>(op, p, seed));
      bytes += sets.back()->bytes();
    }
    std::vector<int> forms;
    for (int f = 0; f < op.fallback_count(); ++f)
      if (op.fallback_applies(f, *p.definition)) forms.push_back(f);
    const auto us = measure(static_cast<int>(forms.size()), rounds, 2000, [&](int form, int i) {
      sets[static_cast<size_t>(i) % sets.size()]->run(op, forms[static_cast<size_t>(form)]);
    });
    const auto best = static_cast<size_t>(std::min_element(us.begin(), us.end()) - us.begin());
    std::printf("%s %s\n", p.definition->name().c_str(), p.to_string().c_str());
    for (size_t f = 0; f < forms.size(); ++f) {
      const std::string name(op.fallback_name(forms[f]));
      std::printf("  %c %-36s %10.2f  %5.2fx\n", f == best ? '*' : ' ', name.c_str(), us[f], us[0] / us[f]);
      rows += std::string(rows.empty() ? "" : ",") + "\n  {\"definition\": \"" + p.definition->name() +
              "\", \"problem\": \"" + p.to_string() + "\", \"form\": \"" + name +
              "\", \"us\": " + std::to_string(us[f]) + "}";
    }
    std::fflush(stdout);
  }
  if (only.empty() || only == "softmax") overhead(*registry.find("softmax"), rounds);
  if (!json.empty())
    std::ofstream(json) << "{\"machine\": \"" << cpu_model() << "\", \"threads\": " << threads
                        << ", \"rounds\": " << rounds << ", \"commit\": \"" << NICHE_COMMIT
                        << "\", \"forms\": [" << rows << "\n]}\n";
  return 0;
}
