// LibraryForms: library forms of operators, run on device memory inside the probe's process, so that a
// candidate is timed against them in turns. The program that links the library gives one.
//
// Thread-safety: one thread. Errors of the library become a Status.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "dispatch/base/status.h"

namespace niche::evolve {

// One set of arguments of one problem.
class LibraryCall {
 public:
  virtual ~LibraryCall() = default;
  // Puts one call of the form on the null stream of the device, as a server would make it: outputs are the
  // library's own.
  virtual dispatch::Status run(int form) = 0;
};

class LibraryForms {
 public:
  virtual ~LibraryForms() = default;
  // `axes`: one extent a schema axis; `arguments`: device pointers, one a schema argument, which outlive the
  // call object. kInvalid, kNotFound: the Definition.
  virtual dispatch::Result<std::unique_ptr<LibraryCall>> prepare(const std::string& definition_json,
                                                                 std::span<const int64_t> axes,
                                                                 std::span<void* const> arguments) = 0;
};

}  // namespace niche::evolve
