#include "runtime/control.h"

namespace niche::core {

dispatch::Result<std::unique_ptr<Control>> Control::start(std::shared_ptr<RuntimeCore> core) {
  return std::unique_ptr<Control>(new Control(std::move(core)));
}

Control::~Control() = default;

}  // namespace niche::core
