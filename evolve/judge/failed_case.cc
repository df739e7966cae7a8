#include "evolve/judge/failed_case.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "evolve/judge/host_args.h"

namespace niche::evolve::judge {
namespace {

using dispatch::ArgRole;
using dispatch::Status;

std::array<void*, dispatch::kMaxArgs> pointers(CaseInputs& buffers) {
  std::array<void*, dispatch::kMaxArgs> p{};
  for (size_t i = 0; i < buffers.size(); ++i) p[i] = buffers[i].empty() ? nullptr : buffers[i].data();
  return p;
}

int arg_count(const dispatch::Problem& p) { return static_cast<int>(p.definition->schema().args.size()); }
const dispatch::ArgSpec& arg_of(const dispatch::Problem& p, int i) {
  return p.definition->schema().args[static_cast<size_t>(i)];
}

Status make_once(const dispatch::OpSpec& op, const dispatch::Problem& problem, int distribution,
                 uint64_t seed, bool constants_only, CaseInputs* inputs) {
  CaseInputs made;
  for (int i = 0; i < arg_count(problem); ++i)
    if (problem.definition->has_arg(i) && arg_of(problem, i).role != ArgRole::kOut)
      made[static_cast<size_t>(i)].assign(static_cast<size_t>(std::max<int64_t>(1, problem.arg_bytes(i))), 0);
  const auto p = pointers(made);
  const HostArgs args(problem, p.data());
  NICHE_RETURN_IF_ERROR(op.make_inputs(problem, distribution, seed, args.tensors()));
  for (int i = 0; i < arg_count(problem); ++i)
    if (!constants_only || arg_of(problem, i).constant)
      (*inputs)[static_cast<size_t>(i)] = std::move(made[static_cast<size_t>(i)]);
  return {};
}

// NumPy's name of a type, "<f4"; empty: it has none.
std::string numpy_type(DLDataType t) {
  const char* kind = t.code == kDLFloat ? "<f" : t.code == kDLInt ? "<i" : t.code == kDLUInt ? "<u" : nullptr;
  return kind == nullptr || t.lanes != 1 ? "" : kind + std::to_string(t.bits / 8);
}

// bf16 is the upper half of f32.
std::vector<uint8_t> widened(const std::vector<uint8_t>& bf16) {
  std::vector<uint8_t> out(bf16.size() * 2, 0);
  for (size_t i = 0; i + 1 < bf16.size(); i += 2) std::memcpy(out.data() + 2 * i + 2, bf16.data() + i, 2);
  return out;
}

// The format's version 1: magic, length, a dictionary padded to 64 bytes, the elements.
Status write_npy(const std::string& path, DLDataType type, const std::vector<int64_t>& shape,
                 int64_t elements, const std::vector<uint8_t>& bytes) {
  const bool wide = type.code == kDLBfloat && type.bits == 16;
  const std::vector<uint8_t> converted = wide ? widened(bytes) : std::vector<uint8_t>();
  const std::vector<uint8_t>& data = wide ? converted : bytes;
  const std::string name = wide ? "<f4" : numpy_type(type);
  if (name.empty()) return dispatch::unsupported(path + ": a type that NumPy does not have");
  std::string head = "{'descr': '" + name + "', 'fortran_order': False, 'shape': (";
  for (const int64_t n : shape) head += std::to_string(n) + ',';
  head += "), }";
  constexpr size_t kPreludeBytes = 10, kAlignment = 64;
  head.append(kAlignment - (kPreludeBytes + head.size() + 1) % kAlignment, ' ');
  head += '\n';
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write("\x93NUMPY\x01\x00", 8);
  const char length[] = {static_cast<char>(head.size() & 255), static_cast<char>(head.size() >> 8)};
  out.write(length, sizeof length);
  out << head;
  const auto width = static_cast<int64_t>(name.back() - '0');
  out.write(reinterpret_cast<const char*>(data.data()), elements * width);
  out.close();
  return out ? Status() : dispatch::errno_status("write " + path);
}

}  // namespace

Status make_case_inputs(const dispatch::OpSpec& op, const dispatch::Problem& problem, const CaseId& id,
                        CaseInputs* inputs) {
  NICHE_RETURN_IF_ERROR(make_once(op, problem, id.distribution, id.seed, false, inputs));
  const auto& args = problem.definition->schema().args;
  const bool constants = std::any_of(args.begin(), args.end(), [](const auto& a) { return a.constant; });
  if (id.constant_seed == 0 || !constants) return {};
  return make_once(op, problem, id.distribution, id.constant_seed, true, inputs);
}

FailedCase failed_case(const CaseId& id, const dispatch::Definition& definition) {
  FailedCase f{{}, id.distribution, id.seed, id.constant_seed};
  for (const int axis : definition.var_axes()) f.var_axes.push_back(id.axes[static_cast<size_t>(axis)]);
  return f;
}

}  // namespace niche::evolve::judge

namespace niche::evolve {

using dispatch::ArgRole;

dispatch::Result<std::vector<std::string>> write_failed_case(
    const dispatch::OpSpec& op, std::shared_ptr<const dispatch::Definition> definition,
    const FailedCase& failed, const std::string& directory) {
  auto problem = judge::make_problem(op, std::move(definition), failed.var_axes);
  if (!problem.ok()) return problem.status();
  judge::CaseInputs inputs, reference;
  const judge::CaseId id{problem->axes, failed.distribution, failed.seed, failed.constant_seed};
  NICHE_RETURN_IF_ERROR(judge::make_case_inputs(op, *problem, id, &inputs));
  const int count = judge::arg_count(*problem);
  for (int i = 0; i < count; ++i)
    if (problem->definition->has_arg(i) && judge::arg_of(*problem, i).role != ArgRole::kIn)
      reference[static_cast<size_t>(i)].assign(
          static_cast<size_t>(std::max<int64_t>(1, judge::reference_bytes(*problem, i))), 0);
  auto p = judge::pointers(inputs), r = judge::pointers(reference);
  const judge::HostArgs args(*problem, p.data());
  NICHE_RETURN_IF_ERROR(
      op.reference(*problem, args.tensors(), judge::HostArgs::outputs(*problem, r.data()).tensors()));
  std::error_code ec;
  std::filesystem::create_directories(directory, ec);
  if (ec) return dispatch::io_error(directory + ": " + ec.message());
  std::vector<std::string> files;
  for (int i = 0; i < count; ++i) {
    const auto a = static_cast<size_t>(i);
    const std::string base = directory + '/' + judge::arg_of(*problem, i).name;
    const auto write = [&](const std::string& path, DLDataType type, const std::vector<uint8_t>& bytes) {
      files.push_back(path);
      return judge::write_npy(path, type, problem->arg_shape(i), problem->arg_elements(i), bytes);
    };
    if (!inputs[a].empty())
      NICHE_RETURN_IF_ERROR(write(base + ".npy", problem->definition->arg_dtype(i), inputs[a]));
    if (!reference[a].empty())
      NICHE_RETURN_IF_ERROR(write(base + ".expected.npy", judge::reference_dtype(*problem, i), reference[a]));
  }
  return files;
}

}  // namespace niche::evolve
