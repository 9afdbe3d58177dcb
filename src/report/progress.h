// Shows the progress of a long run on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace shardinit {

enum class ProgressMode { kAuto, kAlways, kNever };

// On a terminal, repaints one line at most ten times a second. Otherwise prints a line every ten
// seconds.
class Progress {
 public:
  // `verb` names the work, for example "writing". With `quiet`, as for `--json`, kAuto shows
  // nothing.
  Progress(ProgressMode mode, std::string verb, int64_t total_bytes, bool quiet);
  ~Progress();  // clears the line

  // Can be called from several threads at once.
  void Update(int64_t bytes, const std::string& detail = {});

 private:
  using Clock = std::chrono::steady_clock;
  enum class Style { kNone, kRepaint, kLines } style_;
  const std::string verb_;
  const int64_t total_;
  std::mutex mutex_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
  bool painted_ = false;
};

}  // namespace shardinit
