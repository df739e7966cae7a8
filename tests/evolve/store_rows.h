// Rows for tests of the store.
#pragma once

#include <cstdint>
#include <string>

#include "evolve/store/rows.h"

namespace niche::evolve::store {

// A session of no operator in particular.
inline SessionRow session_row(const std::string& id, int64_t started_unix_ns = 1) {
  SessionRow r;
  r.id = id;
  r.definition = r.op = "op";
  r.dtype = "f32";
  r.arch = "cpu";
  r.definition_json = r.request_json = "{}";
  r.problems_json = "[]";
  r.started_unix_ns = started_unix_ns;
  return r;
}

}  // namespace niche::evolve::store
