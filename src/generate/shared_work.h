// Shares pieces of work among threads as they arrive.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/interrupt.h"

namespace shardinit {

// Pieces are numbered from 0, and there may be any number of them. Memory is allocated only for
// requested pieces, a few hundred neighbours at a time.
template <typename Piece>
class SharedWork {
  enum State : uint8_t { kNew, kBegun, kMade };
  static constexpr int64_t kGroup = 256;
  struct Group {
    std::atomic<State> states[kGroup] = {};
    Piece pieces[kGroup] = {};
  };

 public:
  // `make(i)` makes piece i, on any thread.
  explicit SharedWork(std::function<Piece(int64_t)> make) : make_(std::move(make)) {}

  // Makes the pieces of first … last - 1 that no thread has begun, and returns when all of them are
  // made. Throws the first exception of a piece, to every caller. A signal ends it between two
  // pieces.
  void Finish(int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; piece = EndOfGroup(piece)) {
      Group& group = GroupOf(piece);
      const int64_t begin = piece % kGroup, end = std::min(kGroup, begin + last - piece);
      for (int64_t i = begin; i < end && !failed_; ++i) Make(group, i, piece - begin + i);
    }
    for (int64_t piece = first; piece < last; piece = EndOfGroup(piece)) {
      const Group& group = GroupOf(piece);
      const int64_t begin = piece % kGroup, end = std::min(kGroup, begin + last - piece);
      const auto are_made = [&] {
        return std::all_of(group.states + begin, group.states + end,
                           [](const std::atomic<State>& state) { return state == kMade; });
      };
      if (are_made()) continue;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return failed_ || are_made(); });
      if (failure_) std::rethrow_exception(failure_);
    }
  }

  // Looks up pieces and makes missing ones. Each thread needs its own Reader, which remembers its
  // position.
  class Reader {
   public:
    explicit Reader(SharedWork& work) : work_(work) {}
    const Piece& operator[](int64_t piece) {
      if (std::exchange(number_, piece / kGroup) != piece / kGroup) group_ = &work_.GroupOf(piece);
      if (group_->states[piece % kGroup] != kMade) work_.Finish(piece, piece + 1);
      return group_->pieces[piece % kGroup];
    }

   private:
    SharedWork& work_;
    int64_t number_ = -1;
    Group* group_ = nullptr;
  };

 private:
  static int64_t EndOfGroup(int64_t piece) { return (piece / kGroup + 1) * kGroup; }

  Group& GroupOf(int64_t piece) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Group>& group = groups_[piece / kGroup];
    if (!group) group = std::make_unique<Group>();
    return *group;
  }

  void Make(Group& group, int64_t i, int64_t piece) {
    std::atomic<State>& state = group.states[i];
    State expected = kNew;
    if (state != kNew || !state.compare_exchange_strong(expected, kBegun)) return;
    std::exception_ptr failure;
    try {
      ThrowIfInterrupted();
      group.pieces[i] = make_(piece);
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

  const std::function<Piece(int64_t)> make_;
  std::unordered_map<int64_t, std::unique_ptr<Group>> groups_;  // groups by their number
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;
};

}  // namespace shardinit
