// The CUDA device, toolchain and families behind plain C functions, for the Python half of the benchmark
// (h200.py), which owns tensors, references and rivals. What is launched is launched by
// dispatch/devices/cuda, on torch's stream and memory.
//
// Thread-safety: nb_compile may run in several threads and in forked processes; the rest in one thread.
// Answers are JSON in a buffer of the calling thread, valid until its next call; {"error": ...} says why not.
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bench/cuda/copy_family.h"
#include "dispatch/devices/cuda/cuda_kernel.h"
#include "dispatch/niche_map.h"
#include "evolve/candidate_text.h"
#include "evolve/toolchain/cuda_toolchain.h"
#include "runtime/ops/cuda/families.h"
#include "runtime/ops/cuda/schemas.h"

namespace {

using namespace niche;
using json = nlohmann::json;

struct Candidate {
  std::shared_ptr<const dispatch::Definition> definition;
  std::string family, point;
  evolve::CudaKernelSource source;
  std::string arch;
};

struct Bench {
  evolve::CudaFamilyRegistry registry;
  std::unique_ptr<evolve::CudaToolchain> toolchain;
  std::shared_ptr<const dispatch::CudaDriver> driver;
  std::shared_ptr<const dispatch::CudaDevice> device;
  evolve::CudaTarget target;
  std::vector<Candidate> candidates;
  std::vector<std::shared_ptr<const dispatch::CudaKernel>> kernels;
};
Bench bench;

const char* answer(const json& j) {
  thread_local std::string text;
  text = j.dump();
  return text.c_str();
}
const char* failed(const dispatch::Status& s) { return answer({{"error", s.to_string()}}); }

std::vector<evolve::Point> choose(const evolve::CudaTemplateFamily& family, const dispatch::Definition& d,
                                  size_t count, uint64_t seed) {
  std::vector<evolve::Point> points = family.seeds(d, bench.target);
  if (points.size() > count) points.resize(count);
  std::set<evolve::Point> known(points.begin(), points.end());
  std::mt19937_64 random(seed);
  for (int attempt = 0; attempt < 50000 && points.size() < count; ++attempt) {
    evolve::Point p;
    for (const evolve::Param& param : family.params())
      p.push_back(static_cast<int>(random() % param.values.size()));
    if (family.valid(d, bench.target, p) && known.insert(p).second) points.push_back(p);
  }
  return points;
}

json infos_of(const evolve::CubinInfo& info) {
  json list = json::object();
  for (const auto& k : info.kernels)
    list[k.symbol] = {{"registers", k.registers},
                      {"stack", k.stack_bytes},
                      {"spill_stores", k.spill_store_bytes},
                      {"shared", k.static_shared_bytes}};
  return list;
}

dispatch::Result<std::shared_ptr<const dispatch::Definition>> definition_of(const json& r) {
  const std::string op = r.at("op");
  auto schema = op == "copy" ? bench_cuda::copy_schema() : ops_cuda::cuda_schema(op);
  const auto dtype = dispatch::parse_dtype(r.at("dtype").get<std::string>());
  if (schema == nullptr || !dtype) return dispatch::invalid("unknown operator or type: " + op);
  std::vector<std::pair<std::string, int64_t>> consts;
  for (const auto& [name, v] : r.at("consts").items()) consts.emplace_back(name, v.get<int64_t>());
  std::vector<std::pair<std::string, double>> attrs;
  for (const auto& [name, v] : r.at("attrs").items()) attrs.emplace_back(name, v.get<double>());
  auto made = dispatch::Definition::make(schema, *dtype, consts, attrs);
  if (!made) return made.status();
  return std::shared_ptr<const dispatch::Definition>(*made);
}

}  // namespace

extern "C" {

const char* nb_init(const char* cache_dir, const char* nvrtc, const char* arch) {
  auto t = evolve::CudaToolchain::find({.library = nvrtc, .cache_dir = cache_dir});
  if (!t) return failed(t.status());
  bench.toolchain = std::move(*t);
  bench.target = evolve::CudaTarget::named(arch);
  ops_cuda::register_cuda_families(bench.registry);
  bench_cuda::add_copy_family(bench.registry);
  return answer({{"toolchain", bench.toolchain->version()}, {"library", bench.toolchain->library()}});
}

const char* nb_open_device(int ordinal) {
  auto driver = dispatch::CudaDriver::load();
  if (!driver) return failed(driver.status());
  bench.driver = *driver;
  auto found = dispatch::CudaInfo::discover(*bench.driver);
  if (!found) return failed(found.status());
  if (ordinal >= static_cast<int>(found->size())) return answer({{"error", "no such device"}});
  auto device = dispatch::CudaDevice::open(bench.driver, found->at(static_cast<size_t>(ordinal)));
  if (!device) return failed(device.status());
  bench.device = *device;
  const dispatch::CudaInfo& info = bench.device->info();
  return answer({{"name", info.name},
                 {"class", info.device_class()},
                 {"driver", info.driver()},
                 {"arch", info.arch()},
                 {"sm_count", info.sm_count},
                 {"l2_bytes", info.l2_bytes},
                 {"shared_bytes_per_block", info.shared_bytes_per_block}});
}

// {"op","dtype","consts":{},"attrs":{},"count","seed"} -> [{"id","family","point","name"}]
const char* nb_propose(const char* request) {
  const json r = json::parse(request, nullptr, false);
  if (r.is_discarded()) return answer({{"error", "request is not JSON"}});
  auto d = definition_of(r);
  if (!d) return failed(d.status());
  json list = json::array();
  for (const auto* family : bench.registry.for_op((*d)->schema().op))
    for (const auto& p : choose(*family, **d, r.at("count").get<size_t>(), r.at("seed").get<uint64_t>())) {
      Candidate c{*d, family->name(), family->describe(p), family->render(**d, bench.target, p),
                  bench.target.arch};
      list.push_back({{"id", bench.candidates.size()},
                      {"family", c.family},
                      {"point", c.point},
                      {"name", c.source.kernel_name}});
      bench.candidates.push_back(std::move(c));
    }
  return answer(list);
}

// {"op","dtype","consts":{},"attrs":{},"name","text"} -> {"id","family","point","name"}: a program (candidate_text.h).
const char* nb_program(const char* request) {
  const json r = json::parse(request, nullptr, false);
  if (r.is_discarded()) return answer({{"error", "request is not JSON"}});
  auto d = definition_of(r);
  if (!d) return failed(d.status());
  const std::string name = r.at("name");
  auto parsed = evolve::candidate_from_text(**d, name, r.at("text").get<std::string>(), &bench.target);
  if (!parsed) return failed(parsed.status());
  Candidate c{*d, "program", name, {}, bench.target.arch};
  c.source = {parsed->source.text, *parsed->source.cuda, parsed->source.properties, parsed->source.limits,
              (*d)->schema().op + ".program." + name};
  bench.candidates.push_back(std::move(c));
  return answer({{"id", bench.candidates.size() - 1},
                 {"family", "program"},
                 {"point", name},
                 {"name", bench.candidates.back().source.kernel_name}});
}

// The source of a candidate, for other compilers and disassemblers.
const char* nb_text(int id) { return bench.candidates.at(static_cast<size_t>(id)).source.text.c_str(); }

const char* nb_compile(int id) {
  const Candidate& c = bench.candidates.at(static_cast<size_t>(id));
  auto cubin = bench.toolchain->compile(c.source.kernel_name, c.source.text, c.arch);
  if (!cubin) return failed(cubin.status());
  return answer({{"ms", cubin->ms},
                 {"cached", cubin->cached},
                 {"bytes", cubin->bytes.size()},
                 {"kernels", infos_of(cubin->info)}});
}

// {"kernel": handle, "workspace": bytes}
const char* nb_load(int id) {
  const Candidate& c = bench.candidates.at(static_cast<size_t>(id));
  auto cubin = bench.toolchain->compile(c.source.kernel_name, c.source.text, c.arch);
  if (!cubin) return failed(cubin.status());
  auto module = dispatch::CudaModule::load(bench.device, cubin->bytes, c.source.kernel_name);
  if (!module) return failed(module.status());
  dispatch::CudaKernelSpec spec;
  spec.name = c.source.kernel_name;
  spec.definition = c.definition;
  spec.guard = c.source.limits;
  spec.plan = c.source.plan;
  spec.properties = c.source.properties;
  auto kernel = dispatch::load_cuda_kernel(std::move(spec), *module);
  if (!kernel) return failed(kernel.status());
  bench.kernels.push_back(*kernel);
  return answer({{"kernel", bench.kernels.size() - 1}, {"workspace", c.source.plan.workspace_bytes}});
}

// Does the Guard hold for these variable axes?
int nb_holds(int id, const int64_t* var_axes) {
  return bench.candidates.at(static_cast<size_t>(id)).source.limits.holds_var(var_axes) ? 1 : 0;
}

// Who serves these shapes by what was measured at some points: {"axes", "candidates": [id], "points": [{"at",
// "us": [library, candidate...]; 0: does not run}], "shapes": [[...]]} -> [candidate id; -1: the library; -2: nothing
// was measured near enough]. As the runtime draws its regions (runtime/measured_regions.h).
const char* nb_regions(const char* request) {
  const json r = json::parse(request, nullptr, false);
  if (r.is_discarded()) return answer({{"error", "request is not JSON"}});
  std::vector<dispatch::NicheCandidate> candidates(1);
  candidates[0].library = true;
  const std::vector<int> ids = r.at("candidates");
  for (const int id : ids)
    candidates.push_back({.guard = bench.candidates.at(static_cast<size_t>(id)).source.limits});
  std::vector<dispatch::MeasuredPoint> points;
  for (const json& p : r.at("points")) {
    dispatch::MeasuredPoint& point = points.emplace_back();
    for (size_t i = 0; i < p.at("at").size(); ++i) point.axes.at(i) = p["at"][i];
    point.ns = p.at("us").get<std::vector<double>>();
  }
  dispatch::NichePolicy policy;
  policy.library_regions = true;
  const auto map = dispatch::draw_niches(r.at("axes"), points, candidates, policy);
  if (!map.ok()) return failed(map.status());
  json who = json::array();
  for (const json& shape : r.at("shapes")) {
    std::array<int64_t, dispatch::kMaxVarAxes> at{};
    for (size_t i = 0; i < shape.size(); ++i) at.at(i) = shape[i];
    const auto region =
        std::find_if(map->regions.begin(), map->regions.end(),
                     [&](const dispatch::NicheRegion& n) { return n.box.holds_var(at.data()); });
    who.push_back(region == map->regions.end() ? -2
                  : region->candidate == 0     ? -1
                                               : ids[static_cast<size_t>(region->candidate) - 1]);
  }
  return answer({{"who", who}, {"far_margin", policy.far_margin}});
}

int nb_launch(int kernel, void* const* p, const long* n, void* workspace, void* stream) {
  NicheKernelArgs args{};
  args.p = p;
  args.n = n;
  return dispatch::launch_cuda(*bench.kernels[static_cast<size_t>(kernel)], args, workspace,
                               static_cast<CUstream>(stream))
             ? 1
             : 0;
}

// Host nanoseconds a launch, `count` launches: through the Kernel (0) and as a bare cuLaunchKernel of its
// first phase (1). The caller alternates them.
double nb_launch_ns(int kernel, int bare, int count, void* const* p, const long* n, void* stream) {
  const dispatch::CudaKernel& k = *bench.kernels[static_cast<size_t>(kernel)];
  NicheKernelArgs args{};
  args.p = p;
  args.n = n;
  dispatch::NicheCudaArgs packed{};
  for (size_t i = 0; i < k.definition->schema().args.size(); ++i) packed.p[i] = p[i];
  for (size_t i = 0; i < k.definition->schema().axes.size(); ++i) packed.n[i] = n[i];
  void* parameters[] = {&packed};
  const auto& phase = k.cuda_phases[0];
  const unsigned blocks = k.blocks(0, n);
  dispatch::CallFrame frame;
  frame.args = &args;
  frame.stream = stream;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    if (bare != 0)
      bench.driver->cuLaunchKernel(phase.function, blocks, 1, 1, phase.threads, 1, 1, phase.shared_bytes,
                                   static_cast<CUstream>(stream), parameters, nullptr);
    else
      k.launch(k, frame, dispatch::Executor{});
  }
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / count;
}

const char* nb_health() {
  const auto s = bench.device->health();
  return answer({{"ok", s.ok()}, {"error", s.to_string()}});
}

}  // extern "C"
