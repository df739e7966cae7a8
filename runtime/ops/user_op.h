// What a shared object with operators of a user's own exports. Include it in one file:
//
//   niche::dispatch::Status add_ops(niche::dispatch::OpRegistry& registry) { return registry.add(...); }
//   NICHE_REGISTER_OPS(add_ops)
//
// Build it against the niche that will load it: OpSpec is a C++ interface, and the loader refuses an object
// whose ABI text differs from its own (op_abi()). docs/operator_tutorial.md walks through one.
#pragma once

#include <exception>
#include <string>

#include "dispatch/op_spec.h"

namespace niche::ops {

// Raised with every change to dispatch/op_spec.h or dispatch/definition.h that an object compiled before
// would not survive.
inline constexpr int kOpAbiVersion = 2;

// "niche-op 2, gxx 1017, cxx11 1, kernel 1": what an object and its loader must share.
inline std::string op_abi() {
#ifdef _GLIBCXX_USE_CXX11_ABI
  constexpr int kCxx11 = _GLIBCXX_USE_CXX11_ABI;
#else
  constexpr int kCxx11 = -1;
#endif
  return "niche-op " + std::to_string(kOpAbiVersion) + ", gxx " + std::to_string(__GXX_ABI_VERSION) +
         ", cxx11 " + std::to_string(kCxx11) + ", kernel " + std::to_string(NICHE_KERNEL_ABI_VERSION);
}

}  // namespace niche::ops

extern "C" {
// The object's op_abi(); never freed.
typedef const char* (*NicheOpAbiFn)();
// Adds the object's operators; the Status says why not. Exceptions are caught inside.
typedef void (*NicheRegisterOpsFn)(niche::dispatch::OpRegistry* registry, niche::dispatch::Status* status);
}

#define NICHE_REGISTER_OPS(function)                                                       \
  extern "C" __attribute__((visibility("default"))) const char* niche_op_abi() {           \
    static const std::string text = niche::ops::op_abi();                                  \
    return text.c_str();                                                                   \
  }                                                                                        \
  extern "C" __attribute__((visibility("default"))) void niche_register_ops(               \
      niche::dispatch::OpRegistry* registry, niche::dispatch::Status* status) {            \
    try {                                                                                  \
      *status = function(*registry);                                                       \
    } catch (const std::exception& e) {                                                    \
      *status = niche::dispatch::internal(std::string("registration threw: ") + e.what()); \
    }                                                                                      \
  }
