// What a reader wants to see of a run: our figures against the aims, the rivals beside them, and how both
// grow with threads and routes.
#pragma once

#include <vector>

#include "bench/dispatch/rows.h"

namespace niche::bench {

// To stdout. Parts whose rows were not measured are left out.
void print_report(const std::vector<Row>& rows);
// Every row.
void print_rows(const std::vector<Row>& rows);

}  // namespace niche::bench
