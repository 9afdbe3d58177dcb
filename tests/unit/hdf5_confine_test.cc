// Tests which system calls remain available to a process that reads an untrusted file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>
#include <vector>

#include "formats/hdf5/confine.h"

namespace shardinit::hdf5 {
namespace {

constexpr int kUnconfined = 99;

bool HasKernelFilters() { return access("/proc/sys/kernel/seccomp/actions_avail", F_OK) == 0; }

// Returns the exit status of a child process that runs `work`. The child exits by the system call:
// before `_exit`, an address sanitizer makes calls that the filter refuses.
int StatusOf(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) syscall(SYS_exit_group, work());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

// The filter refuses this call, too.
bool IsConfined() { return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0 && errno == EPERM; }

// Tries all actions forbidden to a reader. Returns the number of the first one that succeeds, or 0.
int FirstAllowed(int other) {
  const auto is_refused = [](long result) { return result == -1 && errno == EPERM; };
  char* const nothing[] = {nullptr};
  const std::vector<std::function<bool()>> harms = {
      [&] { return is_refused(open("confine-new", O_WRONLY | O_CREAT, 0600)); },
      [&] { return is_refused(open("/dev/null", O_RDONLY)); },
      [&] { return is_refused(access("confine-there", F_OK)); },
      [&] { return is_refused(unlink("confine-there")); },
      [&] { return is_refused(rename("confine-there", "confine-new")); },
      [&] { return is_refused(chmod("confine-there", 0777)); },
      [&] { return is_refused(mkdir("confine-new", 0700)); },
      [&] { return is_refused(symlink("x", "confine-new")); },
      [&] { return is_refused(execve("/bin/true", nothing, nothing)); },
      [&] { return is_refused(fork()); },
      [&] { return is_refused(socket(AF_INET, SOCK_STREAM, 0)); },
      [&] { return is_refused(kill(getppid(), 0)); },
      [&] { return is_refused(write(other, "x", 1)); },
      [&] { return is_refused(ftruncate(other, 0)); },
      [&] {
        return mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
                   MAP_FAILED &&
               errno == EPERM;
      },
      [&] {
        void* const page =
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return page != MAP_FAILED && is_refused(mprotect(page, 4096, PROT_READ | PROT_EXEC));
      },
      [&] {
        rlimit limit = {1, 1};
        return is_refused(prlimit(getppid(), RLIMIT_CORE, &limit, nullptr));
      },
  };
  for (size_t i = 0; i < harms.size(); ++i) {
    if (!harms[i]()) return static_cast<int>(i) + 1;
  }
  return 0;
}

class ConfineTest : public testing::Test {
 protected:
  void SetUp() override {
    there_ = open("confine-there", O_RDWR | O_CREAT | O_TRUNC, 0600);
    ASSERT_GE(there_, 0);
    ASSERT_EQ(pipe(ends_), 0);
  }
  void TearDown() override {
    for (const int fd : {there_, ends_[0], ends_[1]}) close(fd);
    unlink("confine-there");
  }

  int there_ = -1, ends_[2] = {-1, -1};
};

TEST_F(ConfineTest, ConfinedProcessCannotDoHarm) {
  const int status = StatusOf([&] {
    Confine(ends_[1]);
    return IsConfined() ? FirstAllowed(there_) : kUnconfined;
  });
  if (!HasKernelFilters()) GTEST_SKIP() << "not tested: the kernel has no seccomp filters";
  EXPECT_EQ(status, 0) << "the first action that was allowed, or 99 if nothing is confined";
  EXPECT_NE(access("confine-new", F_OK), 0);
}

TEST_F(ConfineTest, ConfinedReaderStillWorks) {
  const int status = StatusOf([&] {
    Confine(ends_[1]);
    const std::vector<char> memory(64 << 20, 'x');
    struct stat info;
    char byte;
    if (fstat(there_, &info) != 0 || pread(there_, &byte, 1, 0) != 0) return 1;
    if (lseek(there_, 0, SEEK_SET) != 0 || write(ends_[1], memory.data(), 1) != 1) return 2;
    return close(there_) == 0 ? 0 : 3;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace shardinit::hdf5
