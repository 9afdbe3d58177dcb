// Runs threads, and a loop on several of them. The result never depends on how many.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace shardinit {

// Returns the number of cores that this process may use: its affinity and its cgroup's quota.
int AvailableCores();

class Threads {
 public:
  ~Threads();  // waits for their end

  // Starts up to `count` threads and returns how many run: fewer do the same work.
  int Start(int count, const std::function<void()>& body);

 private:
  std::vector<std::thread> threads_;
};

// Calls body(0) … body(count - 1), each once, on up to `jobs` threads. The first exception of a
// body stops the loop and is thrown here. Signals go to the threads that were there before.
void ParallelFor(int64_t count, int jobs, const std::function<void(int64_t)>& body);

}  // namespace shardinit
