// Text of the transforms of Winograd's F(m, 3), m = 2, 4, 6 (points 0, 1, -1, 2, -2, 1/2, -1/2, infinity),
// for conv1d_winograd.cc. Needs W, LANES, M, CI, CO, PANEL, NR and gemm_text().
#pragma once

#include <string_view>

namespace niche::ops_cpu {

std::string_view winograd_text();

}  // namespace niche::ops_cpu
