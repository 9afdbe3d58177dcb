// Work in pieces that threads share as they come.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>

namespace shardinit {

class SharedWork {
 public:
  // `make(i)` makes piece i, from 0 to pieces - 1, on any thread.
  SharedWork(int64_t pieces, std::function<void(int64_t)> make);

  // Makes pieces until none is left, and returns when those of other threads
  // are made too. Throws the first exception of a piece, to everybody. A signal
  // ends it between two pieces.
  void Finish();

 private:
  const int64_t pieces_;
  const std::function<void(int64_t)> make_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable finished_;
  int64_t unfinished_;  // Pieces.
  std::exception_ptr failure_;
};

}  // namespace shardinit
