#include "generate/shared_work.h"

#include <algorithm>
#include <utility>

#include "base/interrupt.h"

namespace shardinit {

SharedWork::SharedWork(int64_t pieces, std::function<void(int64_t)> make)
    : make_(std::move(make)), states_(static_cast<size_t>(pieces)) {}

bool SharedWork::AreMade(int64_t first, int64_t last) const {
  return std::all_of(states_.begin() + first, states_.begin() + last,
                     [](const std::atomic<State>& state) { return state == kMade; });
}

void SharedWork::Finish(int64_t first, int64_t last) {
  for (int64_t piece = first; piece < last && !failed_; ++piece) {
    std::atomic<State>& state = states_[static_cast<size_t>(piece)];
    State expected = kNew;
    if (state != kNew || !state.compare_exchange_strong(expected, kBegun)) continue;
    std::exception_ptr failure;
    try {
      ThrowIfInterrupted();
      make_(piece);
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      if (!failure) state = kMade;
      if (failure && !failure_) failure_ = failure;
      failed_ = failure_ != nullptr;
    }
    changed_.notify_all();
  }
  if (AreMade(first, last)) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failed_ || AreMade(first, last); });
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace shardinit
