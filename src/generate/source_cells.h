// The part of a source's tensor that one thread has at hand.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/source.h"

namespace shardinit {

class SourceCells {
 public:
  explicit SourceCells(const SourceTensor& tensor)
      : tensor_(tensor),
        bytes_(InfoOf(tensor.dtype()).bytes),
        cells_(static_cast<size_t>(
            std::clamp<int64_t>(kBytes / (tensor.cell_elements() * bytes_), 2, 64))) {}

  // Returns where the element of this row-major index is in memory, with those that follow it:
  // `*count` is how many there are, and becomes at most that. It is good until the next call.
  const uint8_t* At(int64_t element, int64_t* count) {
    const int64_t number = element / tensor_.cell_elements(), in_cell = tensor_.cell_elements();
    const int64_t begin = number * in_cell, end = std::min(begin + in_cell, tensor_.elements());
    Cell& cell = cells_[static_cast<size_t>(number) % cells_.size()];
    if (cell.number != number) {
      cell.number = -1;  // so that nothing is taken from it if reading fails
      cell.bytes.resize(static_cast<size_t>((end - begin) * bytes_));
      tensor_.ReadCell(number, cell.bytes.data());
      cell.number = number;
    }
    *count = std::min(*count, end - element);
    return cell.bytes.data() + (element - begin) * bytes_;
  }

 private:
  static constexpr int64_t kBytes = 2 << 20;
  struct Cell {
    int64_t number = -1;
    std::vector<uint8_t> bytes = {};
  };
  const SourceTensor& tensor_;
  const int64_t bytes_;
  std::vector<Cell> cells_;
};

// Sets places[i] to the row-major index of the element at index[0][i], index[1][i], …. Returns the
// first i for which there is none, or `count`.
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

}  // namespace shardinit
