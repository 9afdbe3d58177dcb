// Work in pieces that threads share as they come.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

namespace shardinit {

class SharedWork {
 public:
  // `make(i)` makes piece i, from 0 to pieces - 1, on any thread.
  SharedWork(int64_t pieces, std::function<void(int64_t)> make);

  // Makes those of the pieces first … last - 1 that nobody has begun, and returns
  // when the others of them are made too. Throws the first exception of a piece,
  // to everybody. A signal ends it between two pieces.
  void Finish(int64_t first, int64_t last);
  void Finish() { Finish(0, std::ssize(states_)); }

 private:
  enum State : uint8_t { kNew, kBegun, kMade };
  bool AreMade(int64_t first, int64_t last) const;

  const std::function<void(int64_t)> make_;
  std::vector<std::atomic<State>> states_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;
};

}  // namespace shardinit
