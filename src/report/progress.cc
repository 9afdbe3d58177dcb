#include "report/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <utility>

#include "base/colour.h"
#include "base/talk.h"
#include "report/text.h"

namespace shardinit {
namespace {

size_t TerminalWidth() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(ProgressMode mode, std::string verb, int64_t total_bytes, bool quiet)
    : verb_(std::move(verb)), total_(total_bytes) {
  if (mode == ProgressMode::kNever ||
      (mode == ProgressMode::kAuto && (quiet || LoudnessOfTalk() == Loudness::kQuiet))) {
    style_ = Style::kNone;
  } else {
    style_ = IsTerminal(Channel::kTalk) ? Style::kRepaint : Style::kLines;
  }
}

Progress::~Progress() {
  if (painted_) Talk("\r\x1b[K");
}

void Progress::Update(int64_t bytes, const std::string& detail) {
  if (style_ == Style::kNone) return;
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  const auto pause =
      style_ == Style::kRepaint ? std::chrono::milliseconds(100) : std::chrono::seconds(10);
  if (now - last_ < pause) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(bytes) / seconds;
  std::string line = fmt::format("{} {} of {}", verb_, InBytes(bytes), InBytes(total_));
  if (total_ > 0) line += fmt::format(" ({}%)", bytes / (total_ / 100 + 1));
  line += fmt::format(", {:.2f} GB/s", rate / 1e9);
  if (bytes > 0)
    line += fmt::format(", {} left", InTime(static_cast<double>(total_ - bytes) / rate));
  if (!detail.empty()) line += ", " + detail;
  if (style_ == Style::kLines) {
    Talk(fmt::format("shardinit: {}\n", line));
    return;
  }
  Talk(fmt::format("\r{}\x1b[K", line.substr(0, TerminalWidth() - 1)));
  painted_ = true;
}

}  // namespace shardinit
