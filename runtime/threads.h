// What niche's own threads do first: take a name, and stand back where the work can wait.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace niche::core {

inline void name_thread(const char* name) { (void)pthread_setname_np(pthread_self(), name); }

// This thread alone runs where nobody else wants the CPU: copies that wait to be compared must not cost
// serving its p99.
inline void yield_to_everybody() {
  const sched_param none{};
  (void)pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
}

}  // namespace niche::core
