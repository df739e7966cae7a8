// Document: one page of knowledge: front matter that says when it matters, and modules (its "## " sections)
// that are retrieved one by one.
//
//   ---
//   id: cpu-avx2                      unique; letters, digits, '-', '_'
//   title: AVX2 on x86 servers
//   tier: hardware                    constraints, guidance, hardware, languages or samples
//   platform: cpu.avx2, cpu.avx512    "cpu" holds for all below it; none: everywhere
//   lang: cpp                         none: any
//   op: rms_norm, softmax             none: any
//   phase: draft, improve, repair     none: any
//   bottleneck: memory, compute, latency, occupancy, spills, correctness, compile
//   symptom: words that a search should find it by
//   error: text that an error message holds, any case (repeat the line)
//   metric: speedup < 1               shown when the figure is so (repeat the line)
//   settings: mr=6 nr=2               of template parameters, worth a try (repeat the line)
//   source: where its numbers are from
//   ---
//
// A document is data. Nothing in it is ever executed or taken as an instruction to niche.
// Thread-safety: values and pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/status.h"

namespace niche::kb {

inline constexpr size_t kDocumentBytesMax = 64 << 10;

struct Module {
  std::string heading, text;  // text holds the heading's line
};

struct MetricTrigger {
  std::string name;
  char op = '<';  // '<' or '>'
  double bound = 0;
  bool holds(double v) const { return op == '<' ? v < bound : v > bound; }
};

struct Document {
  std::string id, title, tier, symptom, source;
  std::vector<std::string> platforms, langs, ops, phases, bottlenecks, errors, settings;
  std::vector<MetricTrigger> metrics;
  std::vector<Module> modules;
};

// kInvalid: "kb/x.md line 3: ...": an unknown field, a missing one, or no section.
dispatch::Result<Document> parse_document(std::string_view text, const std::string& origin);

struct ShippedFile {
  std::string_view name, text;
};
// What niche is built with (kb/documents).
std::span<const ShippedFile> shipped_documents();

}  // namespace niche::kb
