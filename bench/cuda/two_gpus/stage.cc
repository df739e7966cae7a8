#include "bench/cuda/two_gpus/stage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace niche::two_gpus {

Stage* map_stage(const std::string& path, bool make, std::string* why) {
  if (make) (void)::unlink(path.c_str());
  const int fd = ::open(path.c_str(), make ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
  if (fd < 0 || (make && ::ftruncate(fd, sizeof(Stage)) != 0)) {
    *why = path + ": " + std::strerror(errno);
    return nullptr;
  }
  void* at = ::mmap(nullptr, sizeof(Stage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (at == MAP_FAILED) {
    *why = path + ": " + std::strerror(errno);
    return nullptr;
  }
  // Zeroes are what every member is constructed as, but for first_step.
  auto* stage = static_cast<Stage*>(at);
  if (make) stage->first_step = 1;
  return stage;
}

}  // namespace niche::two_gpus
