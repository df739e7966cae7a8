// Control: everything of a Runtime that has a thread, touches the disk or talks to a worker.
//
// Thread-safety: members may be called from any thread. Reclamation: belongs to the Runtime; the core
// outlives it.
#pragma once

#include <memory>
#include <string>

#include "runtime/core.h"
#include "runtime/explanation.h"

namespace niche {
struct Health;
}

namespace niche::core {

class Control {
 public:
  static dispatch::Result<std::unique_ptr<Control>> start(std::shared_ptr<RuntimeCore> core);
  ~Control();

 private:
  explicit Control(std::shared_ptr<RuntimeCore> core) : core_(std::move(core)) {}
  std::shared_ptr<RuntimeCore> core_;
};

}  // namespace niche::core
