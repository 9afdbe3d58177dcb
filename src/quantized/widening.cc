#include "quantized/widening.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "quantized/block_values.h"
#include "quantized/read_ahead.h"

namespace shardinit {
namespace {

constexpr int64_t kElementsAtOnce = 1 << 18;

// Computes elements of one matrix.
void FillMatrix(const BlockValues& values, int64_t matrix, int64_t first, int64_t count,
                uint8_t* out) {
  const Widening& widening = values.widening();
  const bool is_transposed = widening.is_transposed;
  const int64_t width = is_transposed ? widening.codes.rows : widening.codes.columns;
  const int64_t bytes = InfoOf(widening.made.dtype()).bytes;
  std::vector<uint8_t> codes;
  while (count > 0) {
    const int64_t row = first / width, column = first % width;
    const bool is_whole = column == 0 && count >= width;
    const int64_t rows =
        is_whole ? std::clamp<int64_t>(kElementsAtOnce / width, 1, count / width) : 1;
    const int64_t columns = std::min({width - column, count, kElementsAtOnce});
    const Rectangle part = is_transposed ? Rectangle{matrix, column, row, columns, rows}
                                         : Rectangle{matrix, row, column, rows, columns};
    codes.resize(static_cast<size_t>(rows * columns));
    ReadCodes(widening.codes, values.stored(Widening::kNumbers), part, codes.data());
    values.Fill(part, codes.data(), is_transposed ? 1 : columns, is_transposed ? columns : 1, out);
    first += rows * columns, count -= rows * columns, out += rows * columns * bytes;
  }
}

}  // namespace

BoxElements Widen(const Widening& widening, std::array<BoxElements, Widening::kParts> stored) {
  const auto values =
      std::make_shared<const BlockValues>(widening, ReadingAhead(widening, std::move(stored)));
  const int64_t size = widening.codes.rows * widening.codes.columns;
  return [values, size, bytes = InfoOf(widening.made.dtype()).bytes](int64_t first, int64_t count,
                                                                     void* out) {
    auto* at = static_cast<uint8_t*>(out);
    while (count > 0) {
      const int64_t now = std::min(count, size - first % size);
      FillMatrix(*values, first / size, first % size, now, at);
      first += now, count -= now, at += now * bytes;
    }
  };
}

}  // namespace shardinit
