#include "evolve/judge/evaluate_file.h"

#include <algorithm>
#include <fstream>

namespace niche::evolve {

constexpr size_t kFileBytesMax = 1 << 20;
constexpr const char* kDeviceEntry = "__global__";

dispatch::Result<FileJudgement> evaluate_file(const std::string& path, EvaluatorSpec spec,
                                              EvaluatorOptions options, const EvaluatorFactory& make) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return dispatch::errno_status("open " + path);
  std::string text(kFileBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kFileBytesMax) return dispatch::invalid(path + ": more than 1 MiB");
  if (!spec.definition) return dispatch::invalid(path + ": no definition to judge it by");
  const CudaTarget* device = spec.target.cuda.get();
  if (const size_t at = text.find(kDeviceEntry); at != std::string::npos && device == nullptr)
    return dispatch::invalid(
        path + " line " +
        std::to_string(1 + std::count(text.begin(), text.begin() + static_cast<long>(at), '\n')) + ": " +
        kDeviceEntry +
        ": a program for a CUDA device, and none is named: it is judged on a machine with one, " +
        "by a niche that was built with CUDA (./dev build cuda), as niche evaluate --device cuda:0");
  auto candidate = candidate_from_text(*spec.definition, path, text, device);
  if (!candidate.ok()) return candidate.status();
  auto evaluator = make(std::move(spec), std::move(options));
  if (!evaluator.ok()) return evaluator.status();
  // What the operator itself cannot do is said as an error, not as the kernel's verdict.
  auto baselines = (*evaluator)->baselines();
  if (!baselines.ok()) return baselines.status();
  Judgement judgement = (*evaluator)->judge(*candidate);
  return FileJudgement{std::move(judgement), std::move(candidate->source), std::move(*baselines)};
}

}  // namespace niche::evolve
