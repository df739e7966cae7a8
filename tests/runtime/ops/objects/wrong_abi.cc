// An object built for another niche: it must be refused before anything of it runs.
#include "dispatch/op_spec.h"

extern "C" __attribute__((visibility("default"))) const char* niche_op_abi() {
  return "niche-op 0, gxx 1, cxx11 0, kernel 0";
}
extern "C" __attribute__((visibility("default"))) void niche_register_ops(niche::dispatch::OpRegistry*,
                                                                          niche::dispatch::Status*) {
  __builtin_trap();
}
