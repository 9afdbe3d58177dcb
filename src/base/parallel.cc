#include "base/parallel.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>

#include "base/parse_number.h"

namespace shardinit {
namespace {

// Returns the quota of a cgroup, version 2 or 1, in cores; 0 if it is unlimited.
double CgroupQuota() {
  double quota = -1, period = 0;
  std::string word;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> word >> period && word != "max") {
    quota = ParseNumber<double>(word).value_or(0);
  } else if (std::ifstream v1("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"); v1 >> quota && quota > 0) {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

// Threads that start while this exists get no signals.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

int AvailableCores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
  if (const double quota = CgroupQuota(); quota > 0) {
    cores = std::min(cores, static_cast<int>(std::lround(quota)));
  }
  return std::max(1, cores);
}

Threads::~Threads() {
  for (std::thread& thread : threads_) thread.join();
}

int Threads::Start(int count, const std::function<void()>& body) {
  for (int t = 0; t < count; ++t) {
    try {
      threads_.emplace_back(body);
    } catch (const std::exception&) {
      return t;  // no thread, or no memory for one
    }
  }
  return count;
}

void ParallelFor(int64_t count, int jobs, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (int64_t i; (i = next++) < count;) body(i);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    Threads threads;
    {
      const SignalsBlocked blocked;
      threads.Start(static_cast<int>(std::min<int64_t>(jobs, count)) - 1, work);
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace shardinit
