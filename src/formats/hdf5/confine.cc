#include "formats/hdf5/confine.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <vector>

namespace shardinit::hdf5 {
namespace {

#if defined(__x86_64__)
constexpr unsigned kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr unsigned kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr unsigned kArchitecture = 0;  // Nobody has checked its call numbers.
#endif

// Calls that are harmless, whatever their arguments are.
constexpr unsigned kHarmless[] = {
    SYS_read,          SYS_pread64,      SYS_readv,        SYS_lseek,          SYS_fstat,
    SYS_close,         SYS_munmap,       SYS_mremap,       SYS_madvise,        SYS_brk,
    SYS_exit,          SYS_exit_group,   SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_futex,
    SYS_clock_gettime, SYS_gettimeofday, SYS_getrandom,    SYS_sched_yield,    SYS_getpid,
    SYS_gettid,        SYS_getcwd};

constexpr unsigned OffsetOf(int argument) {
  const size_t low = std::endian::native == std::endian::little ? 0 : 4;
  return static_cast<unsigned>(offsetof(seccomp_data, args) + 8 * static_cast<size_t>(argument) +
                               low);
}

// A program of the kernel's packet filter, which decides what happens to each call.
class Filter {
 public:
  Filter() {
    Load(offsetof(seccomp_data, arch));
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
    Return(SECCOMP_RET_KILL_PROCESS);
    Load(offsetof(seccomp_data, nr));
  }
  void Allow(unsigned call) {
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    Return(SECCOMP_RET_ALLOW);
  }
  // Allows the call if these bits of this 32-bit argument equal `value`.
  void AllowIf(unsigned call, int argument, unsigned bits, unsigned value) {
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 5));
    Load(OffsetOf(argument));
    code_.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits));
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
    Return(SECCOMP_RET_ALLOW);
    Return(SECCOMP_RET_ERRNO | EPERM);
  }
  void Install() {
    Return(SECCOMP_RET_ERRNO | EPERM);
    const sock_fprog program = {static_cast<unsigned short>(code_.size()), code_.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) {
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    }
  }

 private:
  void Load(size_t offset) {
    code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset)));
  }
  void Return(unsigned what) { code_.push_back(BPF_STMT(BPF_RET | BPF_K, what)); }

  std::vector<sock_filter> code_;
};

}  // namespace

void Confine(int out) {
  if (kArchitecture == 0) return;
  Filter filter;
  for (const unsigned call : kHarmless) filter.Allow(call);
  // Refuse executable memory.
  filter.AllowIf(SYS_mmap, 2, PROT_EXEC, 0);
  filter.AllowIf(SYS_mprotect, 2, PROT_EXEC, 0);
  filter.AllowIf(SYS_write, 0, ~0U, static_cast<unsigned>(out));
  filter.AllowIf(SYS_prlimit64, 0, ~0U, 0);                         // limits of this process
  filter.AllowIf(SYS_newfstatat, 3, AT_EMPTY_PATH, AT_EMPTY_PATH);  // fstat() calls it
  filter.Install();
}

}  // namespace shardinit::hdf5
