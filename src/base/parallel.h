// A loop on several threads. The result never depends on how many.
#pragma once

#include <cstdint>
#include <functional>

namespace shardinit {

// Calls body(0) … body(count - 1), each once, on up to `jobs` threads. The
// first exception of a body stops the loop and is thrown here.
void ParallelFor(int64_t count, int jobs, const std::function<void(int64_t)>& body);

}  // namespace shardinit
