// Keeps the part of a source's tensor that one thread has in memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "tensor/source.h"

namespace shardinit {

class SourceCells {
 public:
  explicit SourceCells(const SourceTensor& tensor)
      : tensor_(tensor),
        bytes_(InfoOf(tensor.dtype()).bytes),
        longest_(std::max<int64_t>(1, kStretch / (tensor.cell_elements() * bytes_))),
        cells_(static_cast<size_t>(
            std::clamp<int64_t>(kBytes / (tensor.cell_elements() * bytes_), 2, 256))) {}

  // Returns how many cells, in any order, can be in memory at once.
  int64_t capacity() const { return std::ssize(cells_); }

  // Returns the address of the element with this row-major index and the elements after it. Reduces
  // `*count` to the number of elements there. The address is valid until the next call.
  const uint8_t* At(int64_t element, int64_t* count) {
    const int64_t in_cell = tensor_.cell_elements(), number = element / in_cell;
    if (number >= stretch_.number && number < stretch_.end) return In(stretch_, element, count);
    const int64_t wanted = (element + *count - 1) / in_cell - number + 1;
    // Reads more cells at a time for callers that read cell after cell.
    ahead_ = number == next_ ? std::min(2 * ahead_, longest_) : 1;
    const int64_t many = std::min(std::max(wanted, ahead_), longest_);
    Cells& cells = many > 1 ? stretch_ : cells_[Slot(number)];
    if (many > 1 || cells.number != number) Read(number, many, &cells);
    next_ = cells.end;
    return In(cells, element, count);
  }

 private:
  // The most bytes of cells that are kept, and that are read together.
  static constexpr int64_t kBytes = 2 << 20, kStretch = 256 << 10;
  // Consecutive cells, from `number` up to `end` (exclusive).
  struct Cells {
    int64_t number = -1, end = -1;
    std::vector<uint8_t> bytes = {};
  };

  // Cells at equal distances, such as the cells of a column, have different slots.
  size_t Slot(int64_t number) const {
    return static_cast<size_t>((static_cast<uint64_t>(number) * 0x9e3779b97f4a7c15) >> 32) %
           cells_.size();
  }

  void Read(int64_t number, int64_t many, Cells* cells) {
    const int64_t in_cell = tensor_.cell_elements(), begin = number * in_cell;
    const int64_t end = std::min(begin + many * in_cell, tensor_.elements());
    *cells = {-1, -1, std::move(cells->bytes)};  // invalid if reading fails
    cells->bytes.resize(static_cast<size_t>((end - begin) * bytes_));
    tensor_.ReadCells(number, CeilDiv(end - begin, in_cell), cells->bytes.data());
    cells->number = number;
    cells->end = number + CeilDiv(end - begin, in_cell);
  }

  const uint8_t* In(const Cells& cells, int64_t element, int64_t* count) const {
    const int64_t at = element - cells.number * tensor_.cell_elements();
    *count = std::min(*count, std::ssize(cells.bytes) / bytes_ - at);
    return cells.bytes.data() + at * bytes_;
  }

  const SourceTensor& tensor_;
  const int64_t bytes_, longest_;
  int64_t next_ = -1, ahead_ = 1;  // the cell after the cells of the last call
  Cells stretch_;
  std::vector<Cells> cells_;
};

// Sets places[i] to the row-major index of the element at index[0][i], index[1][i], …. Returns the
// first i for which that element does not exist, or `count`.
inline int64_t FindPlaces(const Shape& shape, std::span<const double* const> index, int64_t count,
                          int64_t* places) {
  std::fill_n(places, count, 0);
  int64_t good = count;
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto extent = static_cast<double>(shape[d]);
    for (int64_t i = 0; i < good; ++i) {
      const double at = index[d][i];
      if (!(at >= 0 && at < extent && std::floor(at) == at)) {
        good = i;
        break;
      }
      places[i] = places[i] * shape[d] + static_cast<int64_t>(at);
    }
  }
  return good;
}

// The number of elements whose places in a source are found before any is read. With more, a thread
// would need more than 12 MiB for this.
inline constexpr int64_t kGathered = 1 << 20;

// Returns how often a place is in a different cell than the place before it.
inline int64_t CellChanges(std::span<const int64_t> places, int64_t in_cell) {
  int64_t changes = 0;
  for (size_t i = 1; i < places.size(); ++i) {
    changes += places[i] / in_cell != places[i - 1] / in_cell;
  }
  return changes;
}

// Returns an order of the places that keeps places of one cell together; empty: they already are.
inline std::vector<uint32_t> OrderInCells(std::span<const int64_t> places, int64_t in_cell) {
  const auto [low, high] = std::minmax_element(places.begin(), places.end());
  const int64_t base = *low / in_cell, size = *high / in_cell - base + 1;
  if (CellChanges(places, in_cell) < size) return {};
  std::vector<uint32_t> order(places.size());
  // A count for each cell of a large source does not pay off for few places.
  if (size > 4 * kGathered) {
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return std::pair(places[a], a) < std::pair(places[b], b);
    });
    return order;
  }
  std::vector<uint32_t> next(static_cast<size_t>(size) + 1);
  for (const int64_t place : places) ++next[static_cast<size_t>(place / in_cell - base) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (size_t i = 0; i < places.size(); ++i) {
    order[next[static_cast<size_t>(places[i] / in_cell - base)]++] = static_cast<uint32_t>(i);
  }
  return order;
}

// Calls take(i, length) for stretches of neighbours in the source, cell after cell, so that no cell
// is read twice. places[i], …, places[i + length - 1] are consecutive. `take` returns how many of
// these it took.
template <typename Take>
void InCells(std::span<const int64_t> places, int64_t in_cell, const Take& take) {
  const std::vector<uint32_t> order = OrderInCells(places, in_cell);
  const auto count = std::ssize(places);
  const auto number = [&](int64_t i) -> int64_t {
    return order.empty() ? i : order[static_cast<size_t>(i)];
  };
  for (int64_t done = 0; done < count;) {
    const int64_t i = number(done);
    int64_t length = 1;
    while (done + length < count && number(done + length) == i + length &&
           places[static_cast<size_t>(i + length)] == places[static_cast<size_t>(i)] + length) {
      ++length;
    }
    done += take(i, length);
  }
}

}  // namespace shardinit
