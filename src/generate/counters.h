// Counts the bytes and the time that work takes, over all threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace shardinit {

// The work done so far, and the time that all threads together spent on it.
struct WorkCounters {
  std::atomic<int64_t> generated_bytes{0}, hashed_bytes{0}, written_bytes{0}, direct_bytes{0};
  std::atomic<int64_t> generate_ns{0}, hash_ns{0}, write_ns{0}, sync_ns{0}, metadata_ns{0},
      finalize_ns{0};
};

// Adds the time of a scope to a counter.
class Timer {
 public:
  explicit Timer(std::atomic<int64_t>* ns) : ns_(ns), start_(Clock::now()) {}
  ~Timer() {
    *ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<int64_t>* ns_;
  Clock::time_point start_;
};

}  // namespace shardinit
