#include "evolve/toolchain/confine.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <iterator>

namespace niche::evolve {
namespace {

void limit(int what, int64_t value) {
  struct rlimit r {
    static_cast<rlim_t>(value), static_cast<rlim_t>(value)
  };
  setrlimit(static_cast<__rlimit_resource>(what), &r);
}

// Access rights by Landlock ABI; rights a kernel does not know must be left out.
constexpr uint64_t kReadRights =
    LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr uint64_t kAbi1Rights = kReadRights | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                                 LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                                 LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                                 LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                                 LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;
constexpr uint64_t kRefer = 1ULL << 13;     // ABI 2
constexpr uint64_t kTruncate = 1ULL << 14;  // ABI 3
constexpr uint64_t kIoctlDev = 1ULL << 15;  // ABI 5
constexpr uint64_t kNetRights = 3;          // ABI 4: bind and connect by TCP

// Debian 12's header ends at ABI 2; the kernel takes the longer struct and its size.
struct RulesetAttr {
  uint64_t handled_access_fs;
  uint64_t handled_access_net;
};

bool add_path(int ruleset, const std::string& path, uint64_t rights) {
  const int fd = open(path.c_str(), O_PATH | O_CLOEXEC);
  if (fd < 0) return false;
  landlock_path_beneath_attr rule{};
  rule.allowed_access = rights;
  rule.parent_fd = fd;
  const long rc = syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
  close(fd);
  return rc == 0;
}

// The first four instructions of a filter: a program of another architecture is ended, else the call's number
// is loaded. Returns how many they are.
size_t load_call_number(sock_filter* code) {
  size_t n = 0;
  code[n++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch));
  code[n++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
  code[n++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  code[n++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
  return n;
}

bool enter_filter(sock_filter* code, size_t n, unsigned flags) {
  const sock_fprog program{static_cast<unsigned short>(n), code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0;
}

}  // namespace

void apply_resource_limits(const ResourceLimits& limits) {
  limit(RLIMIT_CORE, 0);
  if (limits.cpu_seconds > 0) limit(RLIMIT_CPU, limits.cpu_seconds);
  if (limits.address_bytes > 0) limit(RLIMIT_AS, limits.address_bytes);
  if (limits.data_bytes > 0) limit(RLIMIT_DATA, limits.data_bytes);
  if (limits.file_bytes >= 0) limit(RLIMIT_FSIZE, limits.file_bytes);
  if (limits.stack_bytes > 0) limit(RLIMIT_STACK, limits.stack_bytes);
  if (limits.open_files > 0) limit(RLIMIT_NOFILE, limits.open_files);
}

int make_landlock_ruleset(const std::vector<std::string>& read_paths,
                          const std::vector<std::string>& write_paths) {
  const long abi = syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (abi < 1) return -1;
  RulesetAttr attr{kAbi1Rights, 0};
  if (abi >= 2) attr.handled_access_fs |= kRefer;
  if (abi >= 3) attr.handled_access_fs |= kTruncate;
  if (abi >= 5) attr.handled_access_fs |= kIoctlDev;
  if (abi >= 4) attr.handled_access_net = kNetRights;
  const size_t size = abi >= 4 ? sizeof attr : sizeof attr.handled_access_fs;
  const int ruleset = static_cast<int>(syscall(SYS_landlock_create_ruleset, &attr, size, 0));
  if (ruleset < 0) return -1;
  fcntl(ruleset, F_SETFD, FD_CLOEXEC);
  for (const std::string& p : read_paths)
    if (!add_path(ruleset, p, kReadRights)) add_path(ruleset, p, kReadRights & ~LANDLOCK_ACCESS_FS_READ_DIR);
  for (const std::string& p : write_paths)
    if (!add_path(ruleset, p, attr.handled_access_fs & ~kIoctlDev))
      add_path(ruleset, p, LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE);
  return ruleset;
}

bool enter_landlock(int ruleset_fd) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  return syscall(SYS_landlock_restrict_self, ruleset_fd, 0) == 0;
}

bool forbid_network() {
  static constexpr int kRefused[] = {SYS_socket, SYS_io_uring_setup, SYS_ptrace, SYS_process_vm_readv,
                                     SYS_process_vm_writev};
  constexpr uint32_t kX32 = 0x40000000;  // the same calls under other numbers
  constexpr size_t kCount = std::size(kRefused);
  sock_filter code[kCount + 8];
  size_t n = load_call_number(code);
  code[n++] = BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kX32, static_cast<uint8_t>(kCount + 1), 0);
  for (size_t i = 0; i < kCount; ++i)
    code[n++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(kRefused[i]),
                         static_cast<uint8_t>(kCount - i), 0);
  code[n++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  code[n++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES);
  return enter_filter(code, n, 0);
}

bool enter_compute_seccomp() {
  // What ATen, its allocator, its thread pools and our channel use once everything is loaded. No open, no
  // socket, no fork or exec, no kill, no ptrace, no prctl, no further filters.
  static constexpr int kAllowed[] = {
      SYS_read,
      SYS_write,
      SYS_mmap,
      SYS_munmap,
      SYS_mprotect,
      SYS_mremap,
      SYS_brk,
      SYS_madvise,
      SYS_futex,
      SYS_sched_yield,
      SYS_clock_gettime,
      SYS_clock_getres,
      SYS_gettimeofday,
      SYS_getrusage,
      SYS_rt_sigreturn,
      SYS_rt_sigprocmask,
      SYS_sigaltstack,
      SYS_exit,
      SYS_exit_group,
      SYS_sched_getaffinity,
      SYS_getpid,
      SYS_gettid,
      SYS_getcpu,
      SYS_membarrier,
      SYS_restart_syscall,
      SYS_nanosleep,
      SYS_clock_nanosleep,
      SYS_rseq,
      SYS_set_robust_list,
  };
  constexpr size_t kCount = std::size(kAllowed);
  sock_filter code[kCount + 6];
  size_t n = load_call_number(code);
  for (size_t i = 0; i < kCount; ++i)
    code[n++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(kAllowed[i]),
                         static_cast<uint8_t>(kCount - i), 0);
  code[n++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
  code[n++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  return enter_filter(code, n, SECCOMP_FILTER_FLAG_TSYNC);
}

}  // namespace niche::evolve
