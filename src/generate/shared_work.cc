#include "generate/shared_work.h"

#include <utility>

#include "base/interrupt.h"

namespace shardinit {

SharedWork::SharedWork(int64_t pieces, std::function<void(int64_t)> make)
    : pieces_(pieces), make_(std::move(make)), unfinished_(pieces) {}

void SharedWork::Finish() {
  while (next_ < pieces_) {
    const int64_t piece = next_++;
    if (piece >= pieces_) break;
    std::exception_ptr failure;
    // After a failure the other pieces are passed over, so that all are counted.
    if (!failed_) {
      try {
        ThrowIfInterrupted();
        make_(piece);
      } catch (...) {
        failure = std::current_exception();
        failed_ = true;
      }
    }
    const std::lock_guard lock(mutex_);
    if (failure && !failure_) failure_ = failure;
    if (--unfinished_ == 0) finished_.notify_all();
  }
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this] { return unfinished_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace shardinit
