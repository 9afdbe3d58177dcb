// Tests threads that make pieces together: no thread waits forever or sees an unfinished piece.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "generate/shared_work.h"

namespace shardinit {
namespace {

using std::chrono::milliseconds;

constexpr int kThreads = 4;

// Keeps the processor busy for `steps` steps.
void Spin(int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Runs rounds in which all threads do the same short work at once: they meet before each round.
// Never destroyed while a thread hangs.
struct Rounds {
  explicit Rounds(std::function<void(int thread, int64_t round)> each) : body(std::move(each)) {}

  const std::function<void(int thread, int64_t round)> body;
  std::barrier<> meeting{kThreads};
  std::atomic<int64_t> last{std::numeric_limits<int64_t>::max()};  // The last round.
  std::atomic<int64_t> rounds{0};

  // Runs one thread until the time is over.
  void Run(int thread, std::chrono::steady_clock::time_point end) {
    for (int64_t round = 0;; ++round) {
      meeting.arrive_and_wait();
      if (round > last) return;
      body(thread, round);
      if (thread != 0) continue;
      rounds = round + 1;
      if (std::chrono::steady_clock::now() > end) last = round;
    }
  }
};

// Runs rounds for `time`. Returns false if a round does not end within ten more seconds.
bool EndsInTime(const std::shared_ptr<Rounds>& rounds, milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  std::vector<std::future<void>> ended;
  for (int thread = 0; thread < kThreads; ++thread) {
    auto promise = std::make_shared<std::promise<void>>();
    ended.push_back(promise->get_future());
    std::thread([rounds, promise, thread, end] {
      rounds->Run(thread, end);
      promise->set_value();
    }).detach();
  }
  for (const std::future<void>& one : ended) {
    if (one.wait_until(end + std::chrono::seconds(10)) != std::future_status::ready) return false;
  }
  return true;
}

// The work of a round, created by the first thread that begins it. Two slots are enough: threads
// meet between rounds, so the older round is over when a newer one begins.
template <typename Piece>
class WorkOfRounds {
 public:
  explicit WorkOfRounds(std::function<Piece(int64_t round, int64_t piece)> make)
      : make_(std::move(make)) {}

  std::shared_ptr<SharedWork<Piece>> Of(int64_t round) {
    const std::lock_guard lock(mutex_);
    auto& [number, work] = slots_[static_cast<size_t>(round % 2)];
    if (number != round) {
      number = round;
      work = std::make_shared<SharedWork<Piece>>(
          [this, round](int64_t piece) { return make_(round, piece); });
    }
    return work;
  }

 private:
  const std::function<Piece(int64_t round, int64_t piece)> make_;
  std::mutex mutex_;
  std::array<std::pair<int64_t, std::shared_ptr<SharedWork<Piece>>>, 2> slots_ = {
      {{-1, nullptr}, {-1, nullptr}}};
};

// No thread sleeps through the last piece. A piece takes at most the time that a thread needs to
// fall asleep, so it is often made just when another thread begins to wait for it.
TEST(SharedWork, NoThreadSleepsThroughTheLastPiece) {
  const auto work = std::make_shared<WorkOfRounds<int64_t>>([](int64_t round, int64_t piece) {
    Spin(round * 7 % 1999 + piece * 50);
    return round + piece;
  });
  const auto wrong = std::make_shared<std::atomic<int64_t>>(0);
  const auto rounds = std::make_shared<Rounds>([work, wrong](int thread, int64_t round) {
    const int64_t pieces = 1 + round % 3;
    const auto shared = work->Of(round);
    Spin(round * (thread + 1) % 97);
    shared->Finish(0, pieces);
    SharedWork<int64_t>::Reader reader(*shared);
    for (int64_t i = 0; i < pieces; ++i) *wrong += reader[i] != round + i;
  });
  ASSERT_TRUE(EndsInTime(rounds, milliseconds(3000)))
      << "a thread still waits for a piece that is made, after " << rounds->rounds << " rounds";
  EXPECT_EQ(*wrong, 0);
  EXPECT_GT(rounds->rounds, 100);
}

// Readers begin anywhere, in several groups, and also in pieces that other threads are making.
TEST(SharedWork, ReadersWaitForPiecesOfOtherThreads) {
  constexpr int64_t kPieces = 700;  // Three groups.
  const auto made = std::make_shared<std::atomic<int64_t>>(0);
  const auto work = std::make_shared<WorkOfRounds<int64_t>>([made](int64_t round, int64_t piece) {
    ++*made;
    return round * kPieces + piece;
  });
  const auto wrong = std::make_shared<std::atomic<int64_t>>(0);
  const auto rounds = std::make_shared<Rounds>([work, wrong](int thread, int64_t round) {
    const auto shared = work->Of(round);
    SharedWork<int64_t>::Reader reader(*shared);
    for (int64_t i = 0; i < kPieces; ++i) {
      const int64_t piece = (i + thread * kPieces / kThreads) % kPieces;
      *wrong += reader[piece] != round * kPieces + piece;
    }
  });
  ASSERT_TRUE(EndsInTime(rounds, milliseconds(500))) << "after " << rounds->rounds << " rounds";
  EXPECT_EQ(*wrong, 0);
  EXPECT_EQ(*made, rounds->rounds * kPieces);  // Each piece was made once.
}

// A piece whose maker decides when it is ready. Places for pieces are created under the lock: the
// first place of the second group holds the lock until `open` is set.
struct SlowPiece {
  static inline std::atomic<int> places{0};
  static inline std::atomic<bool> open{false};
  static constexpr int kGroup = 256;

  SlowPiece() {
    if (++places <= kGroup) return;
    while (!open) std::this_thread::yield();
  }
  explicit SlowPiece(int64_t) {}
};

// A thread that finds a piece missing holds the lock until it sleeps. If pieces were made without
// the lock, this could happen in between, and the sleeper would never wake.
TEST(SharedWork, PiecesAreMadeUnderTheLock) {
  std::atomic<bool> goes_on{false}, has_begun{false}, is_seen{false};
  SharedWork<SlowPiece> work([&](int64_t piece) {
    has_begun = has_begun || piece == 0;
    while (piece == 0 && !goes_on) std::this_thread::yield();
    return SlowPiece(piece);
  });
  SharedWork<SlowPiece>::Reader reader(work);
  reader[1];  // The reader knows the first group now, and reads it without the lock.
  std::thread maker([&] { work.Finish(0, 1); });
  while (!has_begun) std::this_thread::yield();
  std::thread holder([&] { work.Finish(SlowPiece::kGroup, SlowPiece::kGroup + 1); });
  while (SlowPiece::places <= SlowPiece::kGroup) std::this_thread::yield();
  goes_on = true;
  std::this_thread::sleep_for(milliseconds(100));  // By now it is made, unless it waits.
  std::thread looker([&] {
    reader[0];
    is_seen = true;
  });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_FALSE(is_seen) << "piece 0 was made while another thread held the lock";
  SlowPiece::open = true;
  for (std::thread* thread : {&maker, &holder, &looker}) thread->join();
}

// All threads get the first failure, whichever piece they are making.
TEST(SharedWork, FailureWakesAllThreads) {
  const auto work = std::make_shared<WorkOfRounds<int64_t>>([](int64_t round, int64_t piece) {
    Spin(round * 7 % 1999);
    if (piece == round % 5) throw std::runtime_error("piece " + std::to_string(piece));
    return piece;
  });
  const auto told = std::make_shared<std::atomic<int64_t>>(0);
  const auto rounds = std::make_shared<Rounds>([work, told](int, int64_t round) {
    try {
      work->Of(round)->Finish(0, 5);
    } catch (const std::runtime_error& e) {
      *told += e.what() == "piece " + std::to_string(round % 5);
    }
  });
  ASSERT_TRUE(EndsInTime(rounds, milliseconds(1000))) << "after " << rounds->rounds << " rounds";
  EXPECT_EQ(*told, rounds->rounds * kThreads);
}

}  // namespace
}  // namespace shardinit
