// Compares how boxes are read, overlap and precede a position with a walk over all their elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/pieces.h"

namespace shardinit {
namespace {

constexpr uint32_t kNothing = 0xEEEEEEEE;  // marks elements outside of the piece

// Calls visit(indices, number) for the elements of a box, in row-major order.
template <typename F>
void ForEachElement(const Box& box, F visit) {
  std::vector<int64_t> at = box.offset;
  const int64_t count = ElementCount(box.shape);
  for (int64_t number = 0; number < count; ++number) {
    visit(at, number);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < box.offset[d] + box.shape[d]) break;
      at[d] = box.offset[d];
    }
  }
}

// Returns the number of an element in a box, or -1 if it is outside.
int64_t PlaceInBox(const Box& box, const std::vector<int64_t>& at) {
  int64_t number = 0;
  for (size_t d = 0; d < at.size(); ++d) {
    const int64_t index = at[d] - box.offset[d];
    if (index < 0 || index >= box.shape[d]) return -1;
    number = number * box.shape[d] + index;
  }
  return number;
}

class Drawing {
 public:
  explicit Drawing(uint32_t seed) : random_(seed) {}

  int64_t Below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random_); }

  Shape DrawShape(const std::vector<int64_t>& extents, size_t most) {
    Shape shape(static_cast<size_t>(Below(static_cast<int64_t>(most) + 1)));
    for (int64_t& extent : shape) {
      extent = extents[static_cast<size_t>(Below(std::ssize(extents)))];
    }
    return shape;
  }

  // Draws a box of a tensor, which includes some dimensions as a whole.
  Box DrawBox(const Shape& shape, bool may_be_empty = true) {
    Box box;
    for (const int64_t extent : shape) {
      const bool is_whole = Below(3) == 0;
      box.offset.push_back(is_whole ? 0 : Below(extent));
      const int64_t most = extent - box.offset.back();
      box.shape.push_back(is_whole ? extent : may_be_empty ? Below(most + 1) : 1 + Below(most));
    }
    return box;
  }

 private:
  std::mt19937 random_;
};

// Returns the elements of `box` as their numbers in the piece, or kNothing.
std::vector<uint32_t> Wanted(const Box& piece, const Box& box, int64_t first, int64_t count) {
  std::vector<uint32_t> wanted;
  ForEachElement(box, [&](const std::vector<int64_t>& at, int64_t number) {
    if (number < first || number >= first + count) return;
    const int64_t held = PlaceInBox(piece, at);
    wanted.push_back(held < 0 ? kNothing : static_cast<uint32_t>(held));
  });
  return wanted;
}

// Reads elements by ReadPiece() and by CopyPiece(), and counts the reads of ReadPiece().
void ExpectRead(const Box& piece, const Box& box, int64_t first, int64_t count,
                int64_t* calls = nullptr) {
  std::vector<uint32_t> elements(static_cast<size_t>(ElementCount(piece.shape)));
  std::iota(elements.begin(), elements.end(), uint32_t{0});
  const auto* const bytes = reinterpret_cast<const uint8_t*>(elements.data());
  const std::vector<uint32_t> wanted = Wanted(piece, box, first, count);
  std::vector<uint32_t> read(static_cast<size_t>(count), kNothing), copied = read;
  int64_t reads = 0;
  ReadPiece(piece, 4, box, first, count, read.data(), [&](int64_t offset, int64_t size, void* out) {
    ++reads;
    ASSERT_GE(offset, 0);
    ASSERT_LE(offset + size, std::ssize(elements) * 4);
    memcpy(out, bytes + offset, static_cast<size_t>(size));
  });
  EXPECT_TRUE(read == wanted) << "read";
  CopyPiece(piece, 4, bytes, 0, box, first, count, reinterpret_cast<uint8_t*>(copied.data()));
  EXPECT_TRUE(copied == wanted) << "copied";
  if (calls != nullptr) *calls = reads;
}

TEST(Pieces, ReadsPiecesLikeAnElementwiseWalk) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Drawing draw(seed);
    const Shape shape = draw.DrawShape({1, 2, 3, 5, 8}, 4);
    const Box piece = draw.DrawBox(shape), box = draw.DrawBox(shape, false);
    const int64_t elements = ElementCount(box.shape), first = draw.Below(elements);
    ExpectRead(piece, box, 0, elements);
    ExpectRead(piece, box, first, 1 + draw.Below(elements - first));
  }
}

// Short and long rows are read in groups, with gaps that are read along and gaps that are skipped,
// beyond the most that is read at once.
TEST(Pieces, ReadsLargePiecesInGroups) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Drawing draw(seed);
    Shape shape = draw.DrawShape({1, 2, 3, 5}, 2);
    shape.push_back(1 + draw.Below(40));
    shape.push_back(
        std::vector<int64_t>{600, 2000, 3000, 9000}[static_cast<size_t>(draw.Below(4))]);
    if (ElementCount(shape) > 1 << 21) continue;
    Box piece = WholeOf(shape), box = draw.DrawBox(shape, false);
    if (draw.Below(2) == 0) std::swap(piece, box);
    const int64_t elements = ElementCount(box.shape), first = draw.Below(elements);
    ExpectRead(piece, box, 0, elements);
    ExpectRead(piece, box, first, 1 + draw.Below(elements - first));
  }
}

TEST(Pieces, ReadsARunAfterAGroupSeparately) {
  int64_t calls = 0;
  // 1 KiB of each row of 4 KiB is wanted: a group has 256 of 257 rows.
  ExpectRead({{0, 0}, {257, 1024}}, {{0, 256}, {257, 256}}, 0, 257 * 256, &calls);
  EXPECT_EQ(calls, 2);
  // Two rows of a plane, and one of the next plane, far after them.
  ExpectRead({{0, 0, 0}, {2, 9, 1024}}, {{0, 0, 256}, {2, 2, 256}}, 0, 3 * 256, &calls);
  EXPECT_EQ(calls, 2);
  // A gap of 8 KiB is read along; a longer gap is skipped.
  ExpectRead({{0, 0}, {3, 2112}}, {{0, 0}, {3, 64}}, 0, 192, &calls);
  EXPECT_EQ(calls, 1);
  ExpectRead({{0, 0}, {3, 2113}}, {{0, 0}, {3, 64}}, 0, 192, &calls);
  EXPECT_EQ(calls, 3);
}

TEST(Pieces, CopiesPiecesFromAnyElement) {
  const Box piece = {{1, 2}, {3, 4}}, box = {{0, 3}, {4, 2}};
  const std::vector<uint32_t> wanted = Wanted(piece, box, 4, 4);  // its numbers: 5, 6, 9 and 10
  const std::vector<uint32_t> elements = {5, 6, 7, 8, 9, 10};
  std::vector<uint32_t> copied(4, kNothing);
  CopyPiece(piece, 4, reinterpret_cast<const uint8_t*>(elements.data()), 5, box, 4, 4,
            reinterpret_cast<uint8_t*>(copied.data()));
  EXPECT_EQ(copied, wanted);
}

TEST(Pieces, CountsSharedAndPrecedingElements) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Drawing draw(seed);
    const Shape shape = draw.DrawShape({1, 2, 3, 5}, 4);
    const Box a = draw.DrawBox(shape), b = draw.DrawBox(shape);
    const Box all = WholeOf(shape);
    int64_t shared = 0, runs = 0, last = -2, last_in_b = -2, before = 0;
    ForEachElement(all, [&](const std::vector<int64_t>& at, int64_t) {
      EXPECT_EQ(ElementsBefore(at, a), before);
      const int64_t in_a = PlaceInBox(a, at), in_b = PlaceInBox(b, at);
      before += in_a >= 0;
      if (in_a < 0 || in_b < 0) return;
      ++shared;
      runs += in_a != last + 1 || in_b != last_in_b + 1;
      last = in_a;
      last_in_b = in_b;
    });
    if (!shape.empty()) {
      std::vector<int64_t> end(shape.size());
      end[0] = shape[0];
      EXPECT_EQ(ElementsBefore(end, a), before);
    }
    EXPECT_EQ(SharedElements(a, b), shared);
    EXPECT_EQ(Overlap(a, b), shared > 0);
    // All runs have the same length.
    EXPECT_EQ(shared > 0 ? RunLength(a, b) * runs : 0, shared);
  }
}

TEST(Pieces, FindsOverlappingPieces) {
  int64_t found = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    Drawing draw(seed);
    const Shape shape = draw.DrawShape({1, 2, 3, 5, 8}, 3);
    std::vector<Box> boxes(static_cast<size_t>(draw.Below(6)));
    std::vector<const Box*> pointers;
    for (Box& box : boxes) {
      box = draw.DrawBox(shape);
      // Smaller boxes, which overlap less often.
      for (int64_t& extent : box.shape) extent = std::min<int64_t>(extent, 1 + draw.Below(3));
      pointers.push_back(&box);
    }
    bool any = false;
    for (size_t i = 0; i < boxes.size(); ++i) {
      for (size_t j = 0; j < i; ++j) any |= Overlap(boxes[j], boxes[i]);
    }
    const auto two = FindOverlap(pointers);
    EXPECT_EQ(two.has_value(), any);
    if (!two) continue;
    ++found;
    EXPECT_LT(two->first, two->second);
    EXPECT_TRUE(Overlap(boxes[two->first], boxes[two->second]));
  }
  EXPECT_GT(found, 400);
  EXPECT_LT(found, 1600);
}

// The 64 files that were requested last are kept open.
TEST(OpenFiles, KeepsRecentlyUsedFilesOpen) {
  const auto path = [](int number) { return "pieces_test." + std::to_string(number); };
  for (int i = 0; i < 200; ++i) std::ofstream(path(i)) << i;
  OpenFiles files;
  const auto expect = [&](int number) {
    const std::shared_ptr<InputFile> file = files.Open(path(number));
    std::string text(static_cast<size_t>(file->size()), '\0');
    file->Read(0, std::ssize(text), text.data());
    EXPECT_EQ(text, std::to_string(number));
    return std::weak_ptr<InputFile>(file);
  };
  const std::weak_ptr<InputFile> first = expect(0), second = expect(1);
  for (int i = 2; i < 64; ++i) expect(i);
  EXPECT_EQ(expect(0).lock(), first.lock());
  EXPECT_FALSE(second.expired());
  expect(64);
  EXPECT_TRUE(second.expired());
  for (int i = 65; i < 200; ++i) {
    expect(i);
    EXPECT_EQ(expect(0).lock(), first.lock());
  }
  for (int i = 0; i < 200; ++i) expect(i);
  EXPECT_TRUE(first.expired());
  std::filesystem::remove(path(7));
  EXPECT_THROW(files.Open(path(7)), Error);
  EXPECT_EQ(files.Open(path(199))->path(), path(199));
  for (int i = 0; i < 200; ++i) std::filesystem::remove(path(i));
}

}  // namespace
}  // namespace shardinit
