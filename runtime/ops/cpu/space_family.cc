#include "runtime/ops/cpu/space_family.h"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace niche::ops_cpu {
namespace {

// The texts know fp32 and bf16. fp16 is the devices': a host's calls of it stay on the library.
bool is_f16(const Definition& d) { return dispatch::same_dtype(d.dtype(), dispatch::kF16); }

}  // namespace

int SpaceFamily::View::operator[](std::string_view name) const {
  for (size_t i = 0; i < family_.params_.size(); ++i)
    if (family_.params_[i].name == name) return family_.params_[i].values[static_cast<size_t>(point_[i])];
  std::fprintf(stderr, "family %s has no parameter '%.*s'\n", family_.name_.c_str(),
               static_cast<int>(name.size()), name.data());
  std::abort();  // a typing error in the family itself; every test of it would hit this
}

SpaceFamily::SpaceFamily(std::string name, std::string op, std::vector<Param> params)
    : name_(std::move(name)), op_(std::move(op)), params_(std::move(params)) {}

bool SpaceFamily::valid(const Definition& d, const CpuTarget& t, const Point& point) const {
  if (!t.avx2 || is_f16(d) || point.size() != params_.size()) return false;
  for (size_t i = 0; i < point.size(); ++i)
    if (point[i] < 0 || point[i] >= static_cast<int>(params_[i].values.size())) return false;
  return allowed(d, t, View(*this, point));
}

std::vector<Point> SpaceFamily::seeds(const Definition& d, const CpuTarget& t) const {
  std::vector<Point> found;
  for (const Settings& settings : seed_points(d, t)) {
    Point p(params_.size(), 0);
    bool known = true;
    for (const auto& [name, value] : settings) {
      const auto param =
          std::find_if(params_.begin(), params_.end(), [&, n = name](const Param& q) { return q.name == n; });
      if (param == params_.end()) {
        known = false;
        break;
      }
      const auto at = std::find(param->values.begin(), param->values.end(), value);
      known = known && at != param->values.end();
      if (known)
        p[static_cast<size_t>(param - params_.begin())] = static_cast<int>(at - param->values.begin());
    }
    if (known && valid(d, t, p) && std::find(found.begin(), found.end(), p) == found.end())
      found.push_back(std::move(p));
  }
  if (!found.empty() || is_f16(d)) return found;
  Point p(params_.size(), 0);
  while (!valid(d, t, p)) {
    size_t i = 0;
    while (i < p.size() && ++p[i] == static_cast<int>(params_[i].values.size())) p[i++] = 0;
    if (i == p.size()) return {};
  }
  return {p};
}

std::string SpaceFamily::kernel_name(const Definition& d, const CpuTarget& t, const Point& point) const {
  std::string variant = name_.substr(name_.find('.') + 1), params;
  for (size_t i = 0; i < params_.size(); ++i)
    params += (i == 0 ? "" : "_") + params_[i].name +
              std::to_string(params_[i].values[static_cast<size_t>(point[i])]);
  return op_ + "." + std::string(dispatch::dtype_name(d.dtype())) + "." + variant + "." + params + "." +
         (t.avx512 ? "avx512" : "avx2");
}

SourceBuilder::SourceBuilder(std::string_view suffix) : suffix_(suffix), text_(evolve::cpu_preamble()) {}

SourceBuilder& SourceBuilder::let(std::string_view name, int64_t value) {
  text_ += "constexpr long " + std::string(name) + " = " + std::to_string(value) + ";\n";
  return *this;
}

SourceBuilder& SourceBuilder::let_float(std::string_view name, double value) {
  char buf[40];
  std::snprintf(buf, sizeof buf, "%.9e", value);
  text_ += "constexpr float " + std::string(name) + " = " + buf + "f;\n";
  return *this;
}

SourceBuilder& SourceBuilder::type(std::string_view name, std::string_view what) {
  text_ += "typedef " + std::string(what) + " " + std::string(name) + ";\n";
  return *this;
}

SourceBuilder& SourceBuilder::body(std::string_view text) {
  for (size_t from = 0; from < text.size();) {
    const size_t at = std::min(text.find('@', from), text.size());
    text_.append(text.substr(from, at - from));
    if (at < text.size()) text_ += suffix_;
    from = at + 1;
  }
  return *this;
}

bool is_bf16(const Definition& d) { return dispatch::same_dtype(d.dtype(), dispatch::kBf16); }
std::string_view element(const Definition& d) { return is_bf16(d) ? "bf16" : "float"; }

int64_t parallel_min_tasks(int kilo, int64_t elements_per_task) {
  return std::max<int64_t>(2, (int64_t{kilo} << 10) / std::max<int64_t>(1, elements_per_task));
}

dispatch::Guard any_problem(const Definition& d) {
  dispatch::Guard g;
  g.var_count = static_cast<int>(d.var_axes().size());
  for (int i = 0; i < g.var_count; ++i)
    g.var[static_cast<size_t>(i)] = {1, std::numeric_limits<int32_t>::max(), 1};
  g.alignment_bytes = static_cast<int>(dispatch::dtype_bytes(d.dtype()));
  return g;
}

}  // namespace niche::ops_cpu
