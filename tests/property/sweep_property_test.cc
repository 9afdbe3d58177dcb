// Tests that one pass over boxes makes other boxes of them, for any boxes and any amount of memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/crc32.h"
#include "checkpoint/sweep.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

// Returns boxes that cover the shape without overlap, made by up to `cuts` random divisions in two.
std::vector<Box> CutUp(const Shape& shape, int64_t cuts, Random& random) {
  std::vector<Box> boxes = {WholeOf(shape)};
  for (; cuts > 0; --cuts) {
    const auto b = static_cast<size_t>(random.In(0, std::ssize(boxes) - 1));
    const auto d = static_cast<size_t>(random.In(0, std::ssize(shape) - 1));
    if (boxes[b].shape[d] < 2) continue;
    Box rest = boxes[b];
    const int64_t first = random.In(1, rest.shape[d] - 1);
    boxes[b].shape[d] = first;
    rest.offset[d] += first;
    rest.shape[d] -= first;
    boxes.push_back(rest);
  }
  return boxes;
}

// Returns the elements of a box of the whole tensor.
std::string Elements(const std::string& all, const Shape& shape, const Box& box, int64_t size) {
  std::string elements;
  const Runs runs(shape, box);
  for (int64_t r = 0; r < runs.count(); ++r) {
    elements += all.substr(static_cast<size_t>(runs.Start(r) * size),
                           static_cast<size_t>(runs.length() * size));
  }
  return elements;
}

class SweepTest : public testing::TestWithParam<int> {};

TEST_P(SweepTest, SweepAssemblesBoxesFromOtherBoxes) {
  Random random(static_cast<uint64_t>(GetParam()));
  Tensor tensor;
  tensor.Edit().dtype = random.Chance(2) ? DType::bf16 : DType::f64;
  const int64_t size = InfoOf(tensor.dtype()).bytes;
  for (int64_t d = random.In(1, 4); d > 0; --d) tensor.Edit().shape.push_back(random.In(1, 24));
  const int64_t count = ElementCount(tensor.shape());
  std::string all(static_cast<size_t>(count * size), '\0');
  for (char& byte : all) byte = static_cast<char>(random.In(0, 255));

  // Each source has a position in a file and is new, watched, already hashed, or never hashed.
  const std::vector<Box> cut = CutUp(tensor.shape(), random.In(0, 11), random);
  const auto name =
      std::filesystem::temp_directory_path() /
      ("shardinit-sweep-" + std::to_string(getpid()) + "-" + std::to_string(GetParam()));
  std::vector<FilePiece> pieces;
  std::vector<Digest> wanted;
  {
    std::ofstream file(name, std::ios::binary);
    for (const Box& box : cut) {
      pieces.push_back({box, name, static_cast<int64_t>(file.tellp())});
      const std::string elements = Elements(all, tensor.shape(), box, size);
      wanted.push_back(Sha256Of(elements));
      file << elements;
    }
  }
  // The pass makes only some boxes, and may make one of them twice.
  std::vector<Box> boxes = CutUp(tensor.shape(), random.In(0, 11), random);
  if (random.Chance(2)) boxes.resize(static_cast<size_t>(random.In(1, std::ssize(boxes))));
  if (random.Chance(2)) boxes.push_back(boxes.front());
  std::vector<Sweep::Source> sources;
  for (const FilePiece& piece : pieces) {
    // A source that is read only to make boxes shares elements with one of them.
    const bool is_met = std::any_of(boxes.begin(), boxes.end(),
                                    [&](const Box& box) { return Overlap(piece.box, box); });
    const int64_t kind = random.In(0, is_met ? 3 : 2);
    Sweep::Source& source = sources.emplace_back();
    source.piece = &piece;
    if (kind == 1 || kind == 2) {
      source.watched = std::make_shared<WatchedBox>(piece, ElementCount(piece.box.shape) * size,
                                                    int64_t{16} << random.In(0, 7));
    }
    if (kind < 2) source.digest = std::make_shared<Digest>();
  }

  std::vector<Digest> digests(boxes.size());
  std::vector<uint32_t> crcs(boxes.size());
  std::vector<std::string> made;
  std::vector<BoxTask> tasks;
  int64_t made_bytes = 0;
  for (size_t b = 0; b < boxes.size(); ++b) {
    // No file is written here: only the address of a file matters.
    const auto* file = reinterpret_cast<const Sink*>(&digests[b]);
    tasks.push_back({&tensor, boxes[b], {file, random.In(0, 8999)}, &digests[b]});
    // Some of several equal boxes are in files that have CRCs, and some are in files already.
    if (!random.Chance(3)) tasks.back().crc = &crcs[b];
    if (random.Chance(4)) tasks.back().output.file = nullptr;
    made.emplace_back(static_cast<size_t>(ElementCount(boxes[b].shape) * size), '\0');
    made_bytes += std::ssize(made.back());
  }
  const std::vector<BoxTask> asked = tasks;
  Sweep sweep(sources, std::move(tasks));
  EXPECT_EQ(sweep.bytes(), made_bytes);
  // Blocks get the least possible memory, a few pages more, or much more.
  const int64_t page = 4096, memory_bytes = page * (random.Chance(2) ? 64 : random.In(8, 71));
  auto* const memory = static_cast<uint8_t*>(
      std::aligned_alloc(static_cast<size_t>(page), static_cast<size_t>(memory_bytes)));
  while (!sweep.IsDone()) {
    std::vector<BoxWrite> writes;
    made_bytes -= sweep.Make(memory, memory_bytes, &writes);
    for (const BoxWrite& write : writes) {
      ASSERT_GE(write.data, memory);
      ASSERT_LE(write.data + write.bytes, memory + memory_bytes);
      const size_t b =
          static_cast<size_t>(reinterpret_cast<const Digest*>(write.file) - &digests[0]);
      const int64_t at = write.offset - asked[b].output.offset;
      ASSERT_GE(at, 0);
      ASSERT_LE(at + write.bytes, std::ssize(made[b]));
      made[b].replace(static_cast<size_t>(at), static_cast<size_t>(write.bytes),
                      reinterpret_cast<const char*>(write.data), static_cast<size_t>(write.bytes));
    }
  }
  std::free(memory);
  std::filesystem::remove(name);
  EXPECT_EQ(made_bytes, 0);
  for (size_t b = 0; b < boxes.size(); ++b) {
    const std::string elements = Elements(all, tensor.shape(), boxes[b], size);
    EXPECT_EQ(made[b],
              asked[b].output.file != nullptr ? elements : std::string(made[b].size(), '\0'));
    EXPECT_EQ(digests[b], Sha256Of(elements));
    EXPECT_EQ(crcs[b], asked[b].crc != nullptr ? Crc32(0, elements) : 0);
  }
  for (size_t s = 0; s < sources.size(); ++s) {
    if (sources[s].digest) {
      EXPECT_EQ(*sources[s].digest, wanted[s]);
    }
  }
}

// The pass reads as many elements as it makes, but not the same ones: the others come from a box
// that is compared.
TEST(Sweep, SweepNeverReadsIntoABoxOfOtherElements) {
  Tensor tensor;
  tensor.Edit().dtype = DType::bf16;
  tensor.Edit().shape = {5000, 4};
  const int64_t size = 2;
  std::string all(static_cast<size_t>(ElementCount(tensor.shape()) * size), '\0');
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<char>(i * 7 / 3);
  const auto name = std::filesystem::temp_directory_path() /
                    ("shardinit-sweep-" + std::to_string(getpid()) + "-columns");
  const Box first{{0, 0}, {5000, 3}}, last{{0, 3}, {5000, 1}}, wanted{{0, 1}, {5000, 3}};
  const std::string begin = Elements(all, tensor.shape(), first, size);
  std::ofstream(name, std::ios::binary) << begin << Elements(all, tensor.shape(), last, size);
  const FilePiece pieces[] = {{first, name, 0}, {last, name, std::ssize(begin)}};
  const auto found = std::make_shared<Digest>();
  std::vector<Sweep::Source> sources(2);
  sources[0].piece = &pieces[0], sources[0].digest = found;
  sources[1].piece = &pieces[1];
  sources[1].watched = std::make_shared<WatchedBox>(pieces[1], 5000 * size, 4096);
  Digest digest;
  Sweep sweep(sources, {{&tensor, wanted, {nullptr, 0}, &digest}});
  std::vector<uint8_t> memory(8 * 4096);
  std::vector<BoxWrite> writes;
  while (!sweep.IsDone()) sweep.Make(memory.data(), std::ssize(memory), &writes);
  std::filesystem::remove(name);
  EXPECT_EQ(*found, Sha256Of(begin));
  EXPECT_EQ(digest, Sha256Of(Elements(all, tensor.shape(), wanted, size)));
}

INSTANTIATE_TEST_SUITE_P(Seeds, SweepTest, testing::Range(0, 150));

}  // namespace
}  // namespace shardinit
