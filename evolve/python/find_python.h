// Which interpreter runs a reference that is not TorchScript.
#pragma once

#include <string>

#include "dispatch/base/status.h"

namespace niche::evolve::python {

// `configured` (a path, or a name looked up on PATH), else "python3" on PATH. kNotFound says where it looked; whether
// it has a torch shows only when it is started.
dispatch::Result<std::string> find_python(const std::string& configured);

}  // namespace niche::evolve::python
