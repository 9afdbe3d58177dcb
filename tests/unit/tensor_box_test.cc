#include <gtest/gtest.h>

#include "tensor/box.h"

namespace shardinit {
namespace {

// Returns the starts of all runs, walked stride by stride as the filler does.
std::vector<int64_t> StartsByStride(const Runs& runs) {
  std::vector<int64_t> starts;
  for (int64_t run = 0; run < runs.count();) {
    const int64_t end = runs.EndOfStride(run), first = runs.Start(run);
    EXPECT_GT(end, run);
    EXPECT_LE(end, runs.count());
    for (int64_t r = run; r < end; ++r) starts.push_back(first + (r - run) * runs.stride());
    run = end;
  }
  return starts;
}

using Starts = std::vector<int64_t>;

TEST(ElementCount, ScalarHasOneElement) {
  EXPECT_EQ(ElementCount({}), 1);
  EXPECT_EQ(ElementCount({3, 4, 5}), 60);
  EXPECT_EQ(ElementCount({3, 0, 5}), 0);
  EXPECT_EQ(ElementCount({int64_t{1} << 31, int64_t{1} << 30}), int64_t{1} << 61);
}

TEST(WholeOf, WholeBoxStartsAtTheOrigin) {
  EXPECT_EQ(WholeOf({3, 4}), (Box{{0, 0}, {3, 4}}));
  EXPECT_EQ(WholeOf({}), (Box{{}, {}}));
}

TEST(Runs, RunsMatchTheHeadersExample) {
  const Runs runs({4, 6, 8}, {{1, 2, 0}, {2, 2, 8}});
  EXPECT_EQ(runs.count(), 2);
  EXPECT_EQ(runs.length(), 16);
  EXPECT_EQ(runs.stride(), 48);
  EXPECT_EQ(StartsByStride(runs), (Starts{48 + 16, 96 + 16}));
}

TEST(Runs, RunsMergeAWholeBox) {
  const Runs runs({4, 6, 8}, WholeOf({4, 6, 8}));
  EXPECT_EQ(runs.count(), 1);
  EXPECT_EQ(runs.length(), 192);
  EXPECT_EQ(runs.Start(0), 0);
  EXPECT_EQ(runs.EndOfStride(0), 1);
}

TEST(Runs, RunsMergeASliceOfTheFirstDimension) {
  const Runs runs({10, 3, 5}, {{7, 0, 0}, {3, 3, 5}});
  EXPECT_EQ(runs.count(), 1);
  EXPECT_EQ(runs.length(), 45);
  EXPECT_EQ(runs.Start(0), 105);
}

TEST(Runs, ScalarIsOneRun) {
  const Runs runs({}, {{}, {}});
  EXPECT_EQ(runs.count(), 1);
  EXPECT_EQ(runs.length(), 1);
  EXPECT_EQ(runs.Start(0), 0);
  EXPECT_EQ(runs.EndOfStride(0), 1);
}

TEST(Runs, RunsSkipDimensionsInBetween) {
  // Dimension 1 is whole, but dimension 2 is not: no dimension before it merges.
  const Runs runs({2, 2, 4}, {{0, 0, 1}, {2, 2, 2}});
  EXPECT_EQ(runs.length(), 2);
  EXPECT_EQ(runs.count(), 4);
  EXPECT_EQ(StartsByStride(runs), (Starts{1, 5, 9, 13}));
}

TEST(Runs, RunsEndWhereAnOuterDimensionAdvances) {
  const Runs runs({3, 4, 4}, {{1, 1, 2}, {2, 2, 1}});
  EXPECT_EQ(runs.length(), 1);
  EXPECT_EQ(runs.EndOfStride(0), 2);
  EXPECT_EQ(runs.EndOfStride(1), 2);
  EXPECT_EQ(runs.EndOfStride(2), 4);
  EXPECT_EQ(StartsByStride(runs), (Starts{22, 26, 38, 42}));
}

TEST(Runs, RunsHaveOffsetsBeyond32Bits) {
  const int64_t n = int64_t{1} << 40;
  const Runs runs({n, 1 << 20}, {{n - 2, 5}, {2, 3}});
  EXPECT_EQ(runs.count(), 2);
  EXPECT_EQ(runs.length(), 3);
  EXPECT_EQ(runs.Start(1), (n - 1) * (1 << 20) + 5);
}

}  // namespace
}  // namespace shardinit
