// Runs threads and parallel loops. Results never depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace shardinit {

// Returns the number of cores that this process may use, by its affinity and its cgroup's quota.
int AvailableCores();

class Threads {
 public:
  ~Threads();  // joins the threads

  // Starts up to `count` threads and returns how many run. Fewer threads do the same work.
  int Start(int count, const std::function<void()>& body);

 private:
  std::vector<std::thread> threads_;
};

// Calls body(0) … body(count - 1), each once, on up to `jobs` threads. Stops at the first exception
// and rethrows it. Signals go only to threads that existed before.
void ParallelFor(int64_t count, int jobs, const std::function<void(int64_t)>& body);

}  // namespace shardinit
