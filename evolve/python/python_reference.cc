#include "evolve/python/python_reference.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "evolve/python/find_python.h"

namespace niche::evolve::python {
namespace {

using dispatch::ArgRole;
using dispatch::Result;
using dispatch::Status;
using nlohmann::json;

constexpr int64_t kAlignment = 64;
constexpr int64_t kSharedBytesMax = int64_t{4} << 30;

// Memory that the interpreter sees as descriptor 4. It grows; nobody can make it smaller under our feet.
class SharedRoom {
 public:
  ~SharedRoom() {
    unmap();
    if (fd_ >= 0) close(fd_);
  }
  Status open() {
    fd_ = memfd_create("niche-reference", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd_ < 0 || fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK) != 0) return dispatch::errno_status("memfd_create");
    return {};
  }
  int fd() const { return fd_; }
  Status reserve(int64_t bytes) {
    if (bytes <= bytes_) return {};
    if (bytes > kSharedBytesMax)
      return dispatch::busy("inputs and results of " + std::to_string(bytes) + " bytes, at most " +
                            std::to_string(kSharedBytesMax));
    unmap();
    if (ftruncate(fd_, bytes) != 0)
      return dispatch::errno_status("shared memory of " + std::to_string(bytes));
    void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (p == MAP_FAILED) return dispatch::errno_status("map " + std::to_string(bytes) + " bytes");
    base_ = static_cast<char*>(p);
    bytes_ = bytes;
    return {};
  }
  char* at(int64_t offset) { return base_ + offset; }

 private:
  void unmap() {
    if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
    base_ = nullptr;
    bytes_ = 0;
  }
  int fd_ = -1;
  char* base_ = nullptr;
  int64_t bytes_ = 0;
};

int64_t bytes_of(const DLTensor& t) {
  int64_t n = static_cast<int64_t>(dispatch::dtype_bytes(t.dtype));
  for (int i = 0; i < t.ndim; ++i) n *= t.shape[i];
  return n;
}

json spec_of(const std::string& name, const DLTensor& t, int64_t at) {
  return {{"name", name},
          {"type", std::string(dispatch::dtype_name(t.dtype))},
          {"shape", std::vector<int64_t>(t.shape, t.shape + t.ndim)},
          {"at", at}};
}

// One tensor of a call and its place in the room.
struct Placed {
  const DLTensor* tensor;
  int64_t at;
};

class Layout {
 public:
  int64_t add(const DLTensor& t) {
    const int64_t at = bytes_;
    bytes_ = (bytes_ + bytes_of(t) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

}  // namespace

struct PythonReference::Impl {
  PythonSource source;
  PythonOptions options;
  mutable std::mutex mutex;
  pid_t owner = 0;
  std::unique_ptr<SharedRoom> room;
  std::unique_ptr<PythonProcess> process;
  Status death;  // why no interpreter will answer any more
  std::string version;
  std::vector<bool> integer;  // by attribute: run() declares it int
  std::vector<bool> wanted;   // by attribute: run() takes it
  int64_t number = 0;

  std::string where() const { return "definition '" + source.definition + "': "; }

  Status fail(dispatch::Code code, const std::string& why) {
    process.reset();
    return death = Status(code, where() + why);
  }

  // After a fork: the parent's interpreter, channel and memory are the parent's.
  void adopt() {
    if (owner == getpid()) return;
    (void)process.release();
    (void)room.release();
    death = {};
    owner = getpid();
  }

  Result<json> ask(const json& question, const TimeLimits& limits) {
    auto text = process->exchange(question.dump(-1, ' ', false, json::error_handler_t::replace), limits);
    if (!text.ok()) return fail(text.status().code(), "reference in Python: " + text.status().message());
    json answer = json::parse(*text, nullptr, false);
    if (!answer.is_object())
      return fail(dispatch::Code::kCorrupt,
                  "reference in Python: the interpreter answered '" + text->substr(0, 80) + "'");
    return answer;
  }

  Status start() {
    adopt();
    if (process) return {};
    if (!death.ok()) return death;
    auto program = find_python(options.program);
    if (!program.ok())
      return fail(dispatch::Code::kUnsupported, "the reference is Python: " + program.status().message());
    room = std::make_unique<SharedRoom>();
    if (const Status s = room->open(); !s.ok()) return fail(s.code(), s.message());
    auto started = PythonProcess::start(*program, room->fd());
    if (!started.ok()) return fail(started.status().code(), started.status().message());
    process = std::move(*started);
    auto hello = ask({{"source", source.text}}, options.start);
    if (!hello.ok()) return hello.status();
    try {
      return greet(*program, *hello);
    } catch (const json::exception& e) {
      return fail(dispatch::Code::kCorrupt, *program + " greeted with nonsense: " + e.what());
    }
  }

  Status greet(const std::string& program, const json& hello) {
    if (hello.contains("no_torch"))
      return fail(dispatch::Code::kUnsupported,
                  "the reference is Python, and " + program +
                      " has no torch: " + hello.at("no_torch").get<std::string>());
    if (hello.contains("error"))
      return fail(dispatch::Code::kUnsupported,
                  "the reference is no Python that loads: " + hello.at("error").get<std::string>());
    const auto& schema = *source.schema;
    std::vector<bool> taken(schema.args.size(), false);
    integer.assign(schema.attrs.size(), false);
    wanted.assign(schema.attrs.size(), false);
    for (const json& parameter : hello.at("parameters")) {
      const auto name = parameter.at(0).get<std::string>();
      const int arg = schema.arg_index(name), attr = schema.attr_index(name);
      if (arg >= 0 && schema.args[static_cast<size_t>(arg)].role != ArgRole::kOut) {
        taken[static_cast<size_t>(arg)] = true;
      } else if (attr >= 0) {
        wanted[static_cast<size_t>(attr)] = true;
        integer[static_cast<size_t>(attr)] = parameter.at(1).get<bool>();
      } else {
        return fail(dispatch::Code::kUnsupported,
                    "run() takes '" + name + "', which is neither an input nor an attribute");
      }
    }
    for (size_t i = 0; i < taken.size(); ++i)
      if (!taken[i] && schema.args[i].role != ArgRole::kOut)
        return fail(dispatch::Code::kUnsupported,
                    "run() does not take the input '" + schema.args[i].name + "'");
    version =
        "Python " + hello.at("python").get<std::string>() + ", torch " + hello.at("torch").get<std::string>();
    return {};
  }

  // The question of one call; copies its inputs into the room.
  Result<json> question(const dispatch::Problem& p, std::span<const DLTensor> args,
                        std::span<const DLTensor> out, std::vector<Placed>* results) {
    const auto& schema = *source.schema;
    json inputs = json::array(), updates = json::array(), outputs = json::array(), values = json::object();
    Layout layout;
    std::vector<Placed> given;
    size_t next = 0;
    for (size_t i = 0; i < schema.args.size(); ++i) {
      const auto& spec = schema.args[i];
      if (!p.definition->has_arg(static_cast<int>(i))) {
        if (spec.role != ArgRole::kOut) values[spec.name] = nullptr;
        continue;
      }
      if (spec.role != ArgRole::kOut) {
        given.push_back({&args[i], layout.add(args[i])});
        inputs.push_back(spec_of(spec.name, args[i], given.back().at));
      }
      if (spec.role == ArgRole::kIn) continue;
      results->push_back({&out[next], layout.add(out[next])});
      (spec.role == ArgRole::kInOut ? updates : outputs)
          .push_back(spec_of(spec.name, out[next], results->back().at));
      ++next;
    }
    for (size_t i = 0; i < schema.attrs.size(); ++i) {
      const double v = p.definition->attrs()[i];
      if (wanted[i] && integer[i]) values[schema.attrs[i].name] = static_cast<int64_t>(v);
      if (wanted[i] && !integer[i]) values[schema.attrs[i].name] = v;
    }
    const int64_t bytes = std::max(layout.bytes(), kAlignment);
    if (const Status s = room->reserve(bytes); !s.ok()) return Status(s.code(), where() + s.message());
    for (const Placed& g : given)
      if (bytes_of(*g.tensor) > 0)
        std::memcpy(room->at(g.at), static_cast<const char*>(g.tensor->data) + g.tensor->byte_offset,
                    static_cast<size_t>(bytes_of(*g.tensor)));
    for (const Placed& r : *results)
      std::memset(room->at(r.at), 0xff, static_cast<size_t>(bytes_of(*r.tensor)));
    return json{{"number", ++number}, {"bytes", bytes},     {"inputs", inputs},
                {"updates", updates}, {"outputs", outputs}, {"values", values}};
  }

  // Are the results that the interpreter tells of those that the Definition declares?
  Status check(const dispatch::Problem& p, const json& question, const json& answer) {
    if (answer.at("number").get<int64_t>() != number)
      return fail(dispatch::Code::kCorrupt, "the interpreter answered another question");
    if (answer.contains("error"))
      return dispatch::internal(where() + "reference failed at " + p.to_string() + ": " +
                                answer.at("error").get<std::string>());
    const json &told = answer.at("outputs"), &declared = question.at("outputs");
    if (told.size() != declared.size())
      return dispatch::unsupported(where() + "run() returned " + std::to_string(told.size()) +
                                   " tensors, the Definition has " + std::to_string(declared.size()) +
                                   " outputs");
    for (size_t i = 0; i < told.size(); ++i) {
      const std::string name = "output '" + declared[i].at("name").get<std::string>() + "'";
      if (told[i].at("shape") != declared[i].at("shape"))
        return dispatch::unsupported(where() + "the reference gives " + name + " as " +
                                     told[i].at("shape").dump() + ", declared " +
                                     declared[i].at("shape").dump() + " at " + p.to_string());
      const bool floating = declared[i].at("type") == "f64";
      if (told[i].at("floating").get<bool>() != floating)
        return dispatch::unsupported(
            where() + "the reference gives " + name + " as " +
            (floating ? "integers, declared floating" : "floating, declared integers"));
    }
    return {};
  }

  Status run(const dispatch::Problem& p, std::span<const DLTensor> args, std::span<const DLTensor> out) {
    NICHE_RETURN_IF_ERROR(start());
    std::vector<Placed> results;
    auto asked = question(p, args, out, &results);
    if (!asked.ok()) return asked.status();
    auto answer = ask(*asked, options.call);
    if (!answer.ok()) return answer.status();
    try {
      NICHE_RETURN_IF_ERROR(check(p, *asked, *answer));
    } catch (const json::exception& e) {
      return fail(dispatch::Code::kCorrupt, std::string("the interpreter answered nonsense: ") + e.what());
    }
    for (const Placed& r : results)
      if (bytes_of(*r.tensor) > 0)
        std::memcpy(static_cast<char*>(r.tensor->data) + r.tensor->byte_offset, room->at(r.at),
                    static_cast<size_t>(bytes_of(*r.tensor)));
    return {};
  }
};

PythonReference::PythonReference(PythonSource source, PythonOptions options)
    : impl_(std::make_unique<Impl>()) {
  impl_->source = std::move(source);
  impl_->options = std::move(options);
}

PythonReference::~PythonReference() { impl_->adopt(); }

Status PythonReference::start() {
  const std::lock_guard lock(impl_->mutex);
  return impl_->start();
}

void PythonReference::stop() {
  const std::lock_guard lock(impl_->mutex);
  impl_->adopt();
  impl_->process.reset();
  impl_->room.reset();
  impl_->death = {};
}

std::string PythonReference::version() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->version;
}

Status PythonReference::run(const dispatch::Problem& p, std::span<const DLTensor> args,
                            std::span<const DLTensor> out) {
  const std::lock_guard lock(impl_->mutex);
  return impl_->run(p, args, out);
}

}  // namespace niche::evolve::python
