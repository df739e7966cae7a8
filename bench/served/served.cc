// bench/served: the ranker's forward pass as a server would run it, in one process and on one thread: niche's
// evolved kernels, the best library forms, and an AOTInductor package of the same model (dynamic in batch and
// length, exported on this CPU). Closed loop over one fixed list of requests, in an order that runs forth and
// back (ABC CBA).
//
// usage: served --package RANKER.pt2 --cache DIR [--trace FILE] [--requests N] [--rounds N] [--json FILE]
//        served --dump-weights WEIGHTS.pt
// DIR is a cache that a demo filled (out/demo/cache): evolution is off here.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>

#include <algorithm>
#include <chrono>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "examples/ranker/model.h"
#include "examples/ranker/niche_ops.h"
#include "runtime/cli/replay/trace.h"
#include "runtime/torch/torch.h"

namespace {

using ranker::Features;
using ranker::Ranking;
using ranker::Weights;

std::vector<std::pair<std::string, at::Tensor>> named(const Weights& w) {
  std::vector<std::pair<std::string, at::Tensor>> v = {
      {"id_table", w.id_table},     {"borders", w.borders}, {"embedding", w.embedding},
      {"event_norm", w.event_norm}, {"ln_w", w.ln_w},       {"ln_b", w.ln_b},
      {"fm_norm", w.fm_norm},       {"head_w", w.head_w},   {"head_b", w.head_b},
      {"items", w.items},           {"fm_x", w.fm_x},       {"fm_y", w.fm_y}};
  for (size_t i = 0; i < 4; ++i) {
    v.emplace_back("conv_w" + std::to_string(i), w.conv_w[i]);
    v.emplace_back("conv_b" + std::to_string(i), w.conv_b[i]);
  }
  for (size_t i = 0; i < 2; ++i) {
    const std::string n = std::to_string(i);
    v.emplace_back("token_norm" + n, w.token_norm[i]);
    v.emplace_back("pffn_b1" + n, w.pffn_b1[i]);
    v.emplace_back("pffn_b2" + n, w.pffn_b2[i]);
    v.emplace_back("pffn_w1" + n, w.pffn_w1[i]);
    v.emplace_back("pffn_w2" + n, w.pffn_w2[i]);
  }
  return v;
}

int dump_weights(const std::string& path) {
  torch::jit::Module module("Weights");
  for (const auto& [name, tensor] : named(Weights::make(ranker::kWeightsSeed)))
    module.register_buffer(name, tensor);
  module.save(path);
  return 0;
}

// The AOTInductor package behind the same signature.
class Package {
 public:
  Package(const std::string& path, const Weights& w) : loader_(path), w_(w) {}
  Ranking rank(const Features& f) {
    std::vector<at::Tensor> in = {f.ids,  f.dense,   w_.history[f.user].slice(1, 0, f.length).contiguous(),
                                  f.item, f.cluster, ranker::event_positions(f.length)};
    auto out = loader_.run(in);
    return {out[0], out[1]};
  }

 private:
  torch::inductor::AOTIModelPackageLoader loader_;
  const Weights& w_;
};

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"served ranker: niche, best library forms, AOTInductor"};
  std::string package, cache, trace = RANKER_DATA_DIR "/azure_llm_2023_conv_sample.csv", json_file, dump;
  size_t requests = 200;
  int rounds = 5;
  app.add_option("--package", package, "the exported model");
  app.add_option("--cache", cache, "kernels that a demo evolved");
  app.add_option("--trace", trace, "where request sizes come from");
  app.add_option("--requests", requests, "requests a round")->check(CLI::Range(10, 100000));
  app.add_option("--rounds", rounds, "rounds there and back")->check(CLI::Range(1, 100));
  app.add_option("--json", json_file, "write the rows there");
  app.add_option("--dump-weights", dump, "write the model's weights and exit");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  if (!dump.empty()) return dump_weights(dump);

  const auto rows = niche::replay::read_trace(trace);
  if (!rows.ok()) return std::fprintf(stderr, "served: %s\n", rows.status().to_string().c_str()), 2;
  std::vector<Features> list;
  for (const auto& q : niche::replay::to_requests(*rows, {}, 1, 1))
    if (q.batch >= 2 && list.size() < requests) list.push_back(Features::make(q.id, q.batch, q.length));

  niche::RuntimeConfig config = niche::torch_config();
  config.cache_dir = cache;
  config.evolve = false;
  auto runtime = niche::Runtime::create(std::move(config));
  if (!runtime.ok()) return std::fprintf(stderr, "served: %s\n", runtime.status().to_string().c_str()), 1;
  const Weights weights = Weights::make(ranker::kWeightsSeed);
  auto ops = ranker::make_niche_ops(**runtime, weights);
  if (!ops.ok()) return std::fprintf(stderr, "served: %s\n", ops.status().to_string().c_str()), 1;
  Package aoti(package, weights);

  struct Subject {
    const char* name;
    const char* force;  // null: the package
    std::vector<double> rate;
  };
  std::vector<Subject> subjects = {
      {"niche", "", {}}, {"best library", "fallback", {}}, {"aotinductor", nullptr, {}}};
  const auto run = [&](Subject& s) {
    if (s.force && !(*runtime)->force(s.force).ok()) std::exit(1);
    const auto one = [&](const Features& f) {
      return s.force ? ranker::rank(weights, **ops, f) : aoti.rank(f);
    };
    for (size_t i = 0; i < 10; ++i) (void)one(list[i]);
    const auto start = std::chrono::steady_clock::now();
    for (const Features& f : list) (void)one(f);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    s.rate.push_back(static_cast<double>(list.size()) / seconds);
    return one(list[0]).features;
  };

  // All three must compute the same function before any speed counts.
  const at::Tensor want = run(subjects[1]);
  for (Subject* s : {&subjects[0], &subjects[2]}) {
    const double off = (run(*s) - want).abs().max().item<double>();
    if (off > 1e-3) return std::fprintf(stderr, "served: %s is off by %g\n", s->name, off), 1;
  }
  for (Subject& s : subjects) s.rate.clear();
  const auto calls = [&](bool evolved) {
    const auto counts = (*runtime)->dispatcher().thread_counts();
    uint64_t n = 0;
    for (const auto rung : {niche::dispatch::Rung::kExact, niche::dispatch::Rung::kRegion})
      n += counts.by_rung[static_cast<size_t>(rung)];
    if (evolved) return n;
    n = 0;
    for (const auto c : counts.by_rung) n += c;
    return n;
  };
  const uint64_t evolved_before = calls(true), calls_before = calls(false);
  (void)run(subjects[0]);
  const double evolved_share =
      static_cast<double>(calls(true) - evolved_before) / static_cast<double>(calls(false) - calls_before);
  std::printf("calls of niche's runs on evolved kernels: %.1f %%\n", 100 * evolved_share);
  subjects[0].rate.clear();
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < subjects.size(); ++i) (void)run(subjects[i]);
    for (size_t i = subjects.size(); i-- > 0;) (void)run(subjects[i]);
  }

  const double niche_rate = median(subjects[0].rate);
  nlohmann::json out = nlohmann::json::array();
  std::printf("%-14s %14s %10s\n", "subject", "requests/s", "niche is");
  for (const Subject& s : subjects) {
    const double rate = median(s.rate);
    std::printf("%-14s %14.1f %9.2fx\n", s.name, rate, niche_rate / rate);
    out.push_back({{"subject", s.name},
                   {"requests_per_s", rate},
                   {"runs", s.rate},
                   {"niche_speedup", niche_rate / rate}});
  }
  if (!json_file.empty()) std::ofstream(json_file) << out.dump(2) << "\n";
  return 0;
}
