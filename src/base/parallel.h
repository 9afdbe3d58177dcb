// A loop on several threads. The result never depends on how many.
#pragma once

#include <cstdint>
#include <functional>

namespace shardinit {

// The cores that this process may use: its affinity and its cgroup's quota.
int AvailableCores();

// Calls body(0) … body(count - 1), each once, on up to `jobs` threads. The
// first exception of a body stops the loop and is thrown here. Signals go to the
// threads that were there before.
void ParallelFor(int64_t count, int jobs, const std::function<void(int64_t)>& body);

}  // namespace shardinit
