#include "generate/moments.h"

#include <fmt/format.h>

#include <cmath>

#include "base/interrupt.h"
#include "generate/source_cells.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

// A tensor is `outer` blocks of `extent` rows of `inner` elements.
struct InRows {
  int64_t outer, extent, inner;
};

std::vector<double> Compute(const SourceTensor& source, const InRows& in, int64_t rows) {
  const int64_t inner = in.inner, columns = in.outer * inner;
  const int64_t bytes = InfoOf(source.dtype()).bytes;
  std::vector<double> moments(static_cast<size_t>(2 * columns));
  for (const bool is_second : {false, true}) {
    SourceCells cells(source);
    double* const sums = moments.data() + (is_second ? columns : 0);
    for (int64_t o = 0; o < in.outer; ++o) {
      // The elements of these rows are consecutive.
      const int64_t begin = o * in.extent * inner, end = begin + rows * inner;
      for (int64_t at = begin, column = 0; at < end;) {
        ThrowIfInterrupted();
        int64_t count = end - at;
        const uint8_t* from = cells.At(at, &count);
        at += count;
        for (; count > 0; --count, from += bytes) {
          const int64_t c = o * inner + column;
          if (++column == inner) column = 0;
          const double value = Decode(from, source.dtype());
          const double apart = value - moments[static_cast<size_t>(c)];
          sums[c] += is_second ? apart * apart : value;
        }
      }
    }
    for (int64_t c = 0; c < columns; ++c) sums[c] /= static_cast<double>(rows);
  }
  for (int64_t c = columns; c < 2 * columns; ++c) {
    moments[static_cast<size_t>(c)] = std::sqrt(moments[static_cast<size_t>(c)]);
  }
  return moments;
}

}  // namespace

Moments MomentsOfColumns(const SourceTensor& source, int64_t axis, int64_t rows) {
  return source.Computed(fmt::format("rows {} along {}", rows, axis), [&] {
    const Shape& shape = source.shape();
    InRows in{1, shape[static_cast<size_t>(axis)], 1};
    for (size_t d = 0; d < shape.size(); ++d) {
      if (static_cast<int64_t>(d) < axis) in.outer *= shape[d];
      if (static_cast<int64_t>(d) > axis) in.inner *= shape[d];
    }
    return Compute(source, in, rows);
  });
}

Moments MomentsOfAll(const SourceTensor& source) {
  return source.Computed("all", [&] {
    return Compute(source, {1, source.elements(), 1}, source.elements());
  });
}

}  // namespace shardinit
