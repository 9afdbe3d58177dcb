// Tests large cases of coverage; views_property_test.cc has small ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tensor/coverage.h"

namespace shardinit {
namespace {

std::optional<int64_t> Held(std::vector<Piece> pieces) {
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937(1));
  std::vector<const Piece*> pointers;
  for (const Piece& piece : pieces) pointers.push_back(&piece);
  return CountHeld(pointers);
}

Piece Stretch(int64_t from, int64_t extent) { return {.from = from, .loops = {{extent, 1, 1}}}; }

// Makes a tile of a matrix with rows of `width`.
Piece Tile(int64_t width, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  return {.from = row * width + column, .loops = {{rows, columns, width}, {columns, 1, 1}}};
}

TEST(Coverage, NoRunsCoverNothing) { EXPECT_EQ(Held({}), 0); }

TEST(Coverage, OverlappingRunsAreCountedOnce) {
  EXPECT_EQ(Held({Stretch(0, 10), Stretch(5, 10), Stretch(20, 5)}), 20);
  EXPECT_EQ(Held({Stretch(0, 10), Stretch(0, 10)}), 10);
  EXPECT_EQ(Held({Stretch(0, int64_t{1} << 62), Stretch(1, int64_t{1} << 62)}),
            (int64_t{1} << 62) + 1);
}

TEST(Coverage, OverlappingColumnsAreCountedOnce) {
  const auto column = [](int64_t from, int64_t count, int64_t stride) {
    return Piece{.from = from, .loops = {{count, 1, stride}}};
  };
  EXPECT_EQ(Held({column(0, 20, 3), column(0, 30, 2)}), 40);
  EXPECT_EQ(Held({column(0, 20, 3), column(1, 30, 2)}), 40);
}

TEST(Coverage, TilesAreCountedWithAndWithoutAGap) {
  constexpr int64_t kTiles = 400, kSide = 1 << 20;
  std::vector<Piece> tiles;
  for (int64_t i = 0; i < kTiles; ++i) {
    for (int64_t j = 0; j < kTiles; ++j) {
      tiles.push_back(Tile(kTiles * kSide, i * kSide, j * kSide, kSide, kSide));
    }
  }
  constexpr int64_t kAll = kTiles * kSide * kTiles * kSide;
  EXPECT_EQ(Held(tiles), kAll);
  tiles[kTiles + 5] = tiles[kTiles + 6];  // The number of elements stays the same.
  EXPECT_EQ(Held(tiles), kAll - kSide * kSide);
}

TEST(Coverage, ManyOverlapsAreCountedOnce) {
  constexpr int64_t kSteps = 20'000;  // A staircase of squares, half as wide as the matrix.
  std::vector<Piece> squares;
  for (int64_t i = 0; i < kSteps; ++i) {
    squares.push_back(Tile(2 * kSteps, i, i, kSteps, kSteps));
  }
  EXPECT_EQ(Held(squares), kSteps * kSteps + (kSteps - 1) * (2 * kSteps - 1));
}

}  // namespace
}  // namespace shardinit
