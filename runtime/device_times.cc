#include "runtime/device_times.h"

#include <utility>

namespace niche::core {

DeviceTimes::DeviceTimes(std::shared_ptr<DevicePlane> plane) : plane_(std::move(plane)) {
  if (plane_ != nullptr)
    records_.assign(static_cast<size_t>(plane_->count()),
                    std::vector<dispatch::EventRecord>(static_cast<size_t>(plane_->tags())));
}

int64_t DeviceTimes::begin(int device, void* stream) {
  if (device < 1 || static_cast<size_t>(device) > records_.size()) return -1;
  return plane_->begin_time(device - 1, stream);
}

void DeviceTimes::end(int device, int64_t tag, void* stream, const dispatch::EventRecord& record) {
  records_[static_cast<size_t>(device - 1)][static_cast<size_t>(tag)] = record;
  plane_->end_time(device - 1, tag, stream);
}

void DeviceTimes::harvest(const std::function<void(const dispatch::EventRecord&, double)>& sample) {
  for (size_t d = 0; d < records_.size(); ++d)
    plane_->harvest(static_cast<int>(d), [&](int64_t tag, double ns) {
      if (ns > 0) sample(records_[d][static_cast<size_t>(tag)], ns);
    });
}

}  // namespace niche::core
