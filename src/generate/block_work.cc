#include "generate/block_work.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/checked_math.h"
#include "base/crc32.h"
#include "base/output_file.h"

namespace shardinit {
namespace {

// A tile stays in the L2 cache between being generated and hashed.
constexpr int64_t kTileBytes = 128 << 10;

// Generates the block's next tile if all generated tiles are hashed. If the block will not be
// hashed now, generates all of it at once.
void Make(BlockWork& work, WorkCounters& counters) {
  const int64_t left = work.bytes - work.made;
  if (left == 0) return;
  const BoxWork& box = *work.box;
  if (box.task.pass) {
    const Timer timer(&counters.hash_ns);
    counters.hashed_bytes += box.task.pass->Make(work.data, work.bytes, &work.writes);
    work.made = work.hashed = work.bytes;
    return;
  }
  const int64_t size = box.filler.element_bytes();
  const bool in_tiles = work.hash && !box.task.source && !box.filler.wants_long_stretches();
  const int64_t count = (in_tiles ? std::min(kTileBytes, left) : left) / size;
  const int64_t first = work.index * box.block_elements + work.made / size;
  uint8_t* const out = work.data + work.made;
  const Timer timer(&counters.generate_ns);
  box.task.source ? box.task.source(first, count, out) : box.filler.Fill(first, count, out);
  work.made += count * size;
  counters.generated_bytes += count * size;
}

// Returns the part of the block that is generated but not yet hashed, at most a tile.
std::pair<const uint8_t*, size_t> NextToHash(const BlockWork& work) {
  if (work.box == nullptr || !work.hash) return {};
  return {work.data + work.hashed,
          static_cast<size_t>(std::min(kTileBytes, work.made - work.hashed))};
}

void AddToCrc(BoxWork& box, const uint8_t* data, size_t bytes) {
  if (box.task.crc == nullptr) return;
  box.crc = Crc32(box.crc, {reinterpret_cast<const char*>(data), bytes});
}

void Hash(BlockWork& a, BlockWork& b, WorkCounters& counters) {
  const auto [a_data, a_bytes] = NextToHash(a);
  const auto [b_data, b_bytes] = NextToHash(b);
  if (a_data == nullptr && b_data == nullptr) return;
  const Timer timer(&counters.hash_ns);
  if (a_data != nullptr && b_data != nullptr) {
    Sha256::UpdateBoth(a.box->hash, a_data, a_bytes, b.box->hash, b_data, b_bytes);
  } else if (a_data != nullptr) {
    a.box->hash.Update(a_data, a_bytes);
  } else {
    b.box->hash.Update(b_data, b_bytes);
  }
  if (a_data != nullptr) AddToCrc(*a.box, a_data, a_bytes);
  if (b_data != nullptr) AddToCrc(*b.box, b_data, b_bytes);
  a.hashed += static_cast<int64_t>(a_bytes);
  b.hashed += static_cast<int64_t>(b_bytes);
  counters.hashed_bytes += static_cast<int64_t>(a_bytes + b_bytes);
}

// Returns the elements of a block: whole rows, if many are in a block, because a transposed row
// needs a read for each of its elements.
int64_t ElementsInBlock(const BoxTask& task, int64_t element_bytes, int64_t block_bytes) {
  const Shape& shape = task.box.shape;
  const int64_t elements = block_bytes / element_bytes;
  if (shape.empty() || shape.back() > elements) return elements;
  const int64_t unit = std::lcm(shape.back() * element_bytes, kDirectUnit) / element_bytes;
  return unit <= elements / 8 ? elements / unit * unit : elements;
}

}  // namespace

BoxWork::BoxWork(BoxTask box, int64_t block_bytes)
    : task(std::move(box)),
      filler(*task.tensor, task.box),
      block_elements(ElementsInBlock(task, filler.element_bytes(), block_bytes)),
      blocks(task.pass ? 1 : CeilDiv(filler.elements(), block_elements)) {}

int64_t BoxWork::BytesOf(int64_t block) const {
  return std::min(block_elements, filler.elements() - block * block_elements) *
         filler.element_bytes();
}

void WorkOn(BlockWork& a, BlockWork& b, WorkCounters& counters) {
  const auto has_ended = [](const BlockWork& work) { return work.box != nullptr && work.IsDone(); };
  do {
    for (BlockWork* work : {&a, &b}) {
      if (work->box != nullptr) Make(*work, counters);
    }
    Hash(a, b, counters);
  } while (!has_ended(a) && !has_ended(b));
}

}  // namespace shardinit
