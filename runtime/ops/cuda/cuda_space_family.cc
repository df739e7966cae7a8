#include "runtime/ops/cuda/cuda_space_family.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace niche::ops_cuda {
namespace {

constexpr std::string_view kChain = "chain";

// Puts `what` at the start of the kernel `symbol`.
void begin_with(std::string* text, const std::string& symbol, std::string_view what) {
  const size_t head = text->find(" " + symbol + "(const __grid_constant__ Args ");
  const size_t body = head == std::string::npos ? head : text->find("{\n", head);
  if (body == std::string::npos) {
    std::fprintf(stderr, "no kernel '%s' in its own text\n", symbol.c_str());
    std::abort();  // as above: every test of the family would hit this
  }
  text->insert(body + 2, what);
}

}  // namespace

int CudaSpaceFamily::View::operator[](std::string_view name) const {
  for (size_t i = 0; i < family_.params_.size(); ++i)
    if (family_.params_[i].name == name) return family_.params_[i].values[static_cast<size_t>(point_[i])];
  std::fprintf(stderr, "family %s has no parameter '%.*s'\n", family_.name_.c_str(),
               static_cast<int>(name.size()), name.data());
  std::abort();  // a typing error in the family itself; every test of it would hit this
}

CudaSpaceFamily::CudaSpaceFamily(std::string name, std::string op, std::vector<Param> params)
    : name_(std::move(name)), op_(std::move(op)), params_(std::move(params)) {
  params_.push_back({std::string(kChain), {0, 1}});
}

CudaKernelSource CudaSpaceFamily::render(const Definition& d, const CudaTarget& t, const Point& point) const {
  CudaKernelSource s = schedule(d, t, point);
  if (View(*this, point)[kChain] == 0) return s;
  for (size_t i = 0; i < s.plan.phases.size(); ++i) {
    const bool waits_itself = i > 0 && s.plan.phases[i].overlap;
    // The wait first: a phase that waits later itself reads inputs before, which what ran before the call may
    // have written.
    begin_with(&s.text, s.plan.phases[i].symbol,
               waits_itself ? "  dependents_launch();\n" : "  dependency_wait();\n  dependents_launch();\n");
    s.plan.phases[i].overlap = true;
  }
  return s;
}

bool CudaSpaceFamily::valid(const Definition& d, const CudaTarget& t, const Point& point) const {
  if (point.size() != params_.size()) return false;
  for (size_t i = 0; i < point.size(); ++i)
    if (point[i] < 0 || point[i] >= static_cast<int>(params_[i].values.size())) return false;
  const View v(*this, point);
  return (v[kChain] == 0 || t.capability >= 90) && allowed(d, t, v);
}

std::vector<Point> CudaSpaceFamily::seeds(const Definition& d, const CudaTarget& t) const {
  std::vector<Point> found;
  for (const Settings& settings : seed_points(d, t)) {
    Point p(params_.size(), 0);
    p.back() = t.capability >= 90 ? 1 : 0;
    bool known = true;
    for (const auto& [name, value] : settings) {
      const auto param =
          std::find_if(params_.begin(), params_.end(), [n = name](const Param& q) { return q.name == n; });
      known = known && param != params_.end();
      if (!known) break;
      const auto at = std::find(param->values.begin(), param->values.end(), value);
      known = at != param->values.end();
      if (!known) break;
      p[static_cast<size_t>(param - params_.begin())] = static_cast<int>(at - param->values.begin());
    }
    if (known && valid(d, t, p) && std::find(found.begin(), found.end(), p) == found.end())
      found.push_back(std::move(p));
  }
  if (!found.empty()) return found;
  Point p(params_.size(), 0);
  while (!valid(d, t, p)) {
    size_t i = 0;
    while (i < p.size() && ++p[i] == static_cast<int>(params_[i].values.size())) p[i++] = 0;
    if (i == p.size()) return {};
  }
  return {p};
}

std::string CudaSpaceFamily::kernel_name(const Definition& d, const CudaTarget& t, const Point& point) const {
  std::string params;
  for (size_t i = 0; i < params_.size(); ++i)
    params += (i == 0 ? "" : "_") + params_[i].name +
              std::to_string(params_[i].values[static_cast<size_t>(point[i])]);
  return op_ + "." + std::string(dispatch::dtype_name(d.dtype())) + "." + name_.substr(name_.find('.') + 1) +
         "." + params + "." + t.arch;
}

CudaSource::CudaSource() : text_(cuda_preamble()) {}

// Enumerators and macros, not constexpr variables: NVRTC gives every namespace-scope variable an address in
// writable memory, used or not, and modules with such memory are refused.
CudaSource& CudaSource::let(std::string_view name, int64_t value) {
  const bool wide = value > std::numeric_limits<int32_t>::max();
  text_ += std::string("enum : ") + (wide ? "long long" : "int") + " { " + std::string(name) + " = " +
           std::to_string(value) + " };\n";
  return *this;
}

CudaSource& CudaSource::let_float(std::string_view name, double value) {
  char buf[40];
  std::snprintf(buf, sizeof buf, "%.9e", value);
  text_ += "#define " + std::string(name) + " " + buf + "f\n";
  return *this;
}

CudaSource& CudaSource::type(std::string_view name, std::string_view what) {
  text_ += "typedef " + std::string(what) + " " + std::string(name) + ";\n";
  return *this;
}

CudaSource& CudaSource::body(std::string_view text) {
  text_ += text;
  return *this;
}

std::string_view element(const Definition& d) {
  if (dispatch::same_dtype(d.dtype(), dispatch::kBf16)) return "bf16";
  return dispatch::same_dtype(d.dtype(), dispatch::kF16) ? "f16" : "float";
}
int element_bytes(const Definition& d) { return static_cast<int>(dispatch::dtype_bytes(d.dtype())); }

bool fits(const CudaTarget& t, int64_t threads, int64_t shared_bytes, int64_t blocks) {
  constexpr int64_t kOfTheSystem = 1024;  // bytes a block
  return shared_bytes <= t.shared_bytes_per_block &&
         blocks * (shared_bytes + kOfTheSystem) <= t.shared_bytes_per_sm &&
         blocks * threads <= t.threads_per_sm;
}

dispatch::Guard any_problem(const Definition& d, int alignment) {
  dispatch::Guard g;
  g.var_count = static_cast<int>(d.var_axes().size());
  for (int i = 0; i < g.var_count; ++i)
    g.var[static_cast<size_t>(i)] = {1, std::numeric_limits<int32_t>::max(), 1};
  g.alignment_bytes = alignment;
  return g;
}

}  // namespace niche::ops_cuda
