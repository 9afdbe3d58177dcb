// Tests which preparations are kept and dropped, for boxes that begin and end in any order.
#include <gtest/gtest.h>

#include <set>

#include "generate/preparations.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

// The memory that the preparations of tensors 0 … 9 take; records which preparations exist.
struct Memory {
  explicit Memory(std::vector<int64_t> sizes) : bytes(std::move(sizes)), tensors(bytes.size()) {}

  std::vector<int64_t> bytes;
  std::vector<Tensor> tensors;
  std::map<const Tensor*, std::weak_ptr<const void>> holders;
  int64_t made = 0;

  Preparations::Hold Hold() {
    return [this](const Tensor& tensor) -> std::shared_ptr<const void> {
      ++made;
      auto holder = std::make_shared<const int>(0);
      EXPECT_TRUE(holders[&tensor].expired()) << "held twice";
      holders[&tensor] = holder;
      return holder;
    };
  }
  std::vector<Preparation> Needs(const std::set<size_t>& which) {
    std::vector<Preparation> needs;
    for (const size_t i : which) needs.push_back({&tensors[i], bytes[i]});
    return needs;
  }
  std::set<size_t> Living() const {
    std::set<size_t> living;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto holder = holders.find(&tensors[i]);
      if (holder != holders.end() && !holder->second.expired()) living.insert(i);
    }
    return living;
  }
  int64_t BytesOf(const std::set<size_t>& which) const {
    int64_t sum = 0;
    for (const size_t i : which) sum += bytes[i];
    return sum;
  }
};

using Which = std::set<size_t>;

TEST(Preparations, FreesIdlePreparationsForLargerOnes) {
  Memory memory({6, 6, 20});
  Preparations held(10, memory.Hold());
  for (const size_t i : {0, 1, 0}) {
    ASSERT_TRUE(held.Use(memory.Needs({i})));
    EXPECT_EQ(memory.Living(), (Which{i}));
    held.Release(memory.Needs({i}));
    EXPECT_EQ(memory.Living(), (Which{i}));  // It may be needed again.
  }
  // A preparation that never fits is alone, and is dropped when no box needs it.
  ASSERT_TRUE(held.Use(memory.Needs({2})));
  EXPECT_EQ(memory.Living(), (Which{2}));
  held.Release(memory.Needs({2}));
  EXPECT_EQ(memory.Living(), (Which{}));
  EXPECT_EQ(held.bytes(), 0);
}

TEST(Preparations, FreesIdlePreparationsWhileOthersAreUsed) {
  Memory memory({4, 4, 5});
  Preparations held(10, memory.Hold());
  ASSERT_TRUE(held.Use(memory.Needs({0})));
  held.Release(memory.Needs({0}));
  ASSERT_TRUE(held.Use(memory.Needs({1})));
  EXPECT_EQ(memory.Living(), (Which{0, 1}));
  ASSERT_TRUE(held.Use(memory.Needs({2})));
  EXPECT_EQ(memory.Living(), (Which{1, 2}));
  EXPECT_FALSE(held.Use(memory.Needs({0})));
  EXPECT_EQ(memory.Living(), (Which{1, 2}));  // Nothing is dropped in vain.
}

// If all ranks need the same four preparations and three fit, each rank makes one again, not four.
TEST(Preparations, KeepsPreparationsThatTheNextRankNeedsFirst) {
  Memory memory({1, 1, 1, 1});
  Preparations held(3, memory.Hold());
  constexpr int kRanks = 10;
  for (int rank = 0; rank < kRanks; ++rank) {
    Which left = {0, 1, 2, 3};
    while (!left.empty()) {
      const auto it = std::find_if(left.begin(), left.end(),
                                   [&](size_t i) { return held.AreHeld(memory.Needs({i})); });
      const size_t next = it == left.end() ? *left.begin() : *it;
      ASSERT_TRUE(held.Use(memory.Needs({next})));
      held.Release(memory.Needs({next}));
      left.erase(next);
    }
  }
  EXPECT_EQ(memory.made, 4 + (kRanks - 1));
}

TEST(Preparations, PreparationsStayWithinTheMemoryLimit) {
  Random random(13);
  for (int round = 0; round < 300 && !testing::Test::HasFailure(); ++round) {
    std::vector<int64_t> sizes;
    for (int i = 0; i < 6; ++i) sizes.push_back(random.In(1, 9));
    Memory memory(sizes);
    const int64_t limit = random.In(1, 20);
    Preparations held(limit, memory.Hold());
    std::vector<Which> at_work;
    for (int step = 0; step < 100; ++step) {
      if (!at_work.empty() && random.Chance(2)) {
        const auto i = random.In(0, std::ssize(at_work) - 1);
        held.Release(memory.Needs(at_work[static_cast<size_t>(i)]));
        at_work.erase(at_work.begin() + i);
      } else {
        Which box = {static_cast<size_t>(random.In(0, 5))};
        while (random.Chance(3)) box.insert(static_cast<size_t>(random.In(0, 5)));
        const Which before = memory.Living();
        Which needed = box;
        for (const Which& other : at_work) needed.insert(other.begin(), other.end());
        const bool there = std::includes(before.begin(), before.end(), box.begin(), box.end());
        EXPECT_EQ(held.AreHeld(memory.Needs(box)), there);
        // A box waits only if its needs do not fit next to the running boxes' needs.
        const bool goes = there || at_work.empty() || memory.BytesOf(needed) <= limit;
        ASSERT_EQ(held.Use(memory.Needs(box)), goes);
        if (goes) {
          at_work.push_back(box);
        } else {
          EXPECT_EQ(memory.Living(), before);
        }
      }
      const Which living = memory.Living();
      Which needed;
      for (const Which& box : at_work) needed.insert(box.begin(), box.end());
      EXPECT_TRUE(std::includes(living.begin(), living.end(), needed.begin(), needed.end()));
      EXPECT_EQ(held.bytes(), memory.BytesOf(living));
      EXPECT_TRUE(held.bytes() <= limit || living == needed) << held.bytes() << " of " << limit;
    }
  }
}

}  // namespace
}  // namespace shardinit
