#include "quantized/widening.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/error.h"
#include "tensor/convert.h"
#include "tensor/encode-inl.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

constexpr int64_t kElementsAtOnce = 1 << 18;

float RoundedToBf16(float number) {
  const uint32_t bits = encoding::Bf16(std::bit_cast<uint32_t>(number));
  return std::bit_cast<float>(bits << 16);
}

// Reads elements of a part of a widening. Boxes of a few columns need a few bytes of each row,
// which are read together with the rows between them. Thread-safe.
class ReadAhead {
 public:
  ReadAhead(BoxElements read, const Tensor& part, size_t number)
      : read_(std::move(read)),
        elements_(part.elements()),
        bytes_(InfoOf(part.dtype()).bytes),
        number_(number) {}

  void operator()(int64_t first, int64_t count, void* out) const {
    Chunk& chunk = chunks_[number_];
    const bool is_next =
        chunk.id == id_ && first >= chunk.last && (first - chunk.last) * bytes_ < kLongestGap;
    const bool is_here = chunk.id == id_ && first >= chunk.first &&
                         first + count <= chunk.first + std::ssize(chunk.elements) / bytes_;
    if (!is_here) {
      if (!is_next || count * bytes_ > kLongestGap) {
        chunk = {id_, first, first + count, {}};
        return read_(first, count, out);
      }
      const int64_t many = std::min(kAhead / bytes_, elements_ - first);
      chunk.id = 0;  // if reading fails
      chunk.elements.resize(static_cast<size_t>(many * bytes_));
      read_(first, many, chunk.elements.data());
      chunk.id = id_, chunk.first = first;
    }
    chunk.last = first + count;
    std::memcpy(out, &chunk.elements[static_cast<size_t>((first - chunk.first) * bytes_)],
                static_cast<size_t>(count * bytes_));
  }

 private:
  static constexpr int64_t kLongestGap = 16 << 10, kAhead = 64 << 10;  // bytes
  struct Chunk {
    uint64_t id = 0;              // of the reader
    int64_t first = 0, last = 0;  // the first element here, and the end of those read last
    std::vector<uint8_t> elements = {};
  };

  static thread_local std::array<Chunk, Widening::kParts> chunks_;
  static std::atomic<uint64_t> ids_;
  const BoxElements read_;
  const int64_t elements_, bytes_;
  const size_t number_;
  const uint64_t id_ = ++ids_;
};

thread_local std::array<ReadAhead::Chunk, Widening::kParts> ReadAhead::chunks_;
std::atomic<uint64_t> ReadAhead::ids_;

// Copies the elements of codes, `stride` bytes apart.
template <typename T>
void LookUp(const uint8_t* codes, int64_t count, const uint8_t* table, int64_t stride,
            uint8_t* out) {
  for (int64_t i = 0; i < count; ++i, out += stride) {
    std::memcpy(out, table + codes[i] * sizeof(T), sizeof(T));
  }
}

class Computation {
 public:
  Computation(const Widening& widening, std::array<BoxElements, Widening::kParts> stored)
      : widening_(widening), stored_(std::move(stored)) {}

  // Computes elements of one matrix.
  void Fill(int64_t matrix, int64_t first, int64_t count, uint8_t* out) const {
    const CodeMatrices& codes = widening_.codes;
    const bool is_transposed = widening_.is_transposed;
    const int64_t width = is_transposed ? codes.rows : codes.columns;
    const int64_t bytes = InfoOf(widening_.made.dtype()).bytes;
    while (count > 0) {
      const int64_t row = first / width, column = first % width;
      const bool is_whole = column == 0 && count >= width;
      const int64_t rows =
          is_whole ? std::clamp<int64_t>(kElementsAtOnce / width, 1, count / width) : 1;
      const int64_t columns = std::min({width - column, count, kElementsAtOnce});
      if (is_transposed) {
        FillRectangle({matrix, column, row, columns, rows}, 1, columns, out);
      } else {
        FillRectangle({matrix, row, column, rows, columns}, columns, 1, out);
      }
      first += rows * columns, count -= rows * columns, out += rows * columns * bytes;
    }
  }

 private:
  // Computes a rectangle as it is stored. The strides count elements of `out`.
  void FillRectangle(const Rectangle& part, int64_t row_stride, int64_t column_stride,
                     uint8_t* out) const {
    const auto size = static_cast<size_t>(part.rows * part.columns);
    std::vector<uint8_t> codes(size);
    ReadCodes(widening_.codes, stored_[Widening::kNumbers], part, codes.data());
    const int64_t block_rows = widening_.block_rows, block_columns = widening_.block_columns;
    Rectangle blocks = {part.matrix, part.row / block_rows, part.column / block_columns, 0, 0};
    blocks.rows = (part.row + part.rows - 1) / block_rows + 1 - blocks.row;
    blocks.columns = (part.column + part.columns - 1) / block_columns + 1 - blocks.column;
    const std::vector<float> scales = ReadScales(blocks), zeros = ReadZeros(blocks);
    Scratch scratch;
    for (int64_t b = 0; b < blocks.rows * blocks.columns; ++b) {
      const int64_t row = (blocks.row + b / blocks.columns) * block_rows - part.row;
      const int64_t column = (blocks.column + b % blocks.columns) * block_columns - part.column;
      const Rectangle block = {0, std::max<int64_t>(row, 0), std::max<int64_t>(column, 0),
                               std::min(row + block_rows, part.rows),
                               std::min(column + block_columns, part.columns)};
      FillBlock(codes.data(), part.columns, block, zeros[static_cast<size_t>(b)],
                scales[static_cast<size_t>(b)], row_stride, column_stride, out, &scratch);
    }
  }

  // Memory of the blocks of a rectangle.
  struct Scratch {
    std::vector<float> numbers;
    std::vector<uint8_t> table;
  };

  // Computes a block. Its ends, not its sizes, are in `block`.
  void FillBlock(const uint8_t* codes, int64_t width, const Rectangle& block, float zero,
                 float scale, int64_t row_stride, int64_t column_stride, uint8_t* out,
                 Scratch* scratch) const {
    const int64_t bytes = InfoOf(widening_.made.dtype()).bytes;
    const int64_t columns = block.columns - block.column;
    const bool has_many = columns * (block.rows - block.row) >= std::ssize(widening_.values);
    const uint8_t* const table = has_many ? TableOf(zero, scale, scratch) : nullptr;
    for (int64_t row = block.row; row < block.rows; ++row) {
      const uint8_t* const code = codes + row * width + block.column;
      uint8_t* const to = out + (row * row_stride + block.column * column_stride) * bytes;
      if (table == nullptr) {
        scratch->numbers.resize(static_cast<size_t>(columns));
        Multiply(code, columns, zero, scale, scratch->numbers.data());
        RequireHeld(scratch->numbers, Store(scratch->numbers, column_stride * bytes, to));
      } else if (bytes == 2) {
        LookUp<uint16_t>(code, columns, table, column_stride * bytes, to);
      } else if (bytes == 4) {
        LookUp<uint32_t>(code, columns, table, column_stride * bytes, to);
      } else {
        LookUp<uint64_t>(code, columns, table, column_stride * bytes, to);
      }
    }
  }

  // Returns the elements of all codes of a block; null if some cannot be elements, which is an
  // error only if they occur, or if an element is a byte.
  const uint8_t* TableOf(float zero, float scale, Scratch* scratch) const {
    const int64_t bytes = InfoOf(widening_.made.dtype()).bytes;
    if (bytes == 1) return nullptr;
    const size_t kinds = widening_.values.size();
    scratch->numbers.resize(kinds);
    scratch->table.resize(kinds * static_cast<size_t>(bytes));
    float* const numbers = scratch->numbers.data();
    for (size_t i = 0; i < kinds; ++i) numbers[i] = (widening_.values[i] - zero) * scale;
    if (widening_.is_exact &&
        std::any_of(numbers, numbers + kinds, [](float product) { return std::isinf(product); })) {
      return nullptr;
    }
    Finish(static_cast<int64_t>(kinds), numbers);
    const bool is_held =
        Store(scratch->numbers, bytes, scratch->table.data()) == std::ssize(scratch->numbers);
    return is_held ? scratch->table.data() : nullptr;
  }

  // Computes the numbers of codes of one block.
  void Multiply(const uint8_t* codes, int64_t count, float zero, float scale, float* out) const {
    const float* const values = widening_.values.data();
    for (int64_t i = 0; i < count; ++i) out[i] = (values[codes[i]] - zero) * scale;
    if (widening_.is_exact && std::isfinite(scale)) RequireFinite(codes, count, scale, out);
    Finish(count, out);
  }

  // Does what follows the first multiplication.
  void Finish(int64_t count, float* numbers) const {
    if (widening_.times != 1) {
      for (int64_t i = 0; i < count; ++i) numbers[i] *= widening_.times;
    }
    if (widening_.through == DType::bf16) {
      for (int64_t i = 0; i < count; ++i) numbers[i] = RoundedToBf16(numbers[i]);
    } else if (widening_.through == DType::f16) {
      for (int64_t i = 0; i < count; ++i) numbers[i] = DecodeF16(EncodeF16(numbers[i]));
    }
  }

  void RequireFinite(const uint8_t* codes, int64_t count, float scale,
                     const float* products) const {
    const float* const found =
        std::find_if(products, products + count, [](float product) { return std::isinf(product); });
    if (found == products + count) return;
    const bool is_power = widening_.scale == Widening::Scale::kExponent;
    throw Error(
        ExitCode::kUsage,
        fmt::format("`{}` has the value {} with the scale {}, whose product f32 cannot hold",
                    widening_.made.path(), widening_.values[codes[found - products]],
                    is_power ? fmt::format("2^{}", std::ilogb(scale)) : fmt::to_string(scale)));
  }

  // Writes numbers in the requested type, `stride` bytes apart, up to the first that it cannot
  // hold. Returns how many were written. Convert() is slow; bf16 is encoded here.
  int64_t Store(const std::vector<float>& numbers, int64_t stride, uint8_t* out) const {
    const DType dtype = widening_.made.dtype();
    const int64_t count = std::ssize(numbers);
    if (dtype == DType::bf16) {
      float most = 0;
      const auto encode = [&](int64_t i, uint8_t* to) {
        const float number = numbers[static_cast<size_t>(i)];
        const auto bits = static_cast<uint16_t>(encoding::Bf16(std::bit_cast<uint32_t>(number)));
        most = std::max(most, std::fabs(number));
        std::memcpy(to, &bits, sizeof bits);
      };
      if (stride == sizeof(uint16_t)) {
        for (int64_t i = 0; i < count; ++i)
          encode(i, out + i * static_cast<int64_t>(sizeof(uint16_t)));
      } else {
        for (int64_t i = 0; i < count; ++i) encode(i, out + i * stride);
      }
      if (most <= largest_) return count;
    }
    for (int64_t i = 0; i < count; ++i, out += stride) {
      if (!Convert(&numbers[static_cast<size_t>(i)], DType::f32, dtype, out)) return i;
    }
    return count;
  }

  // Throws unless all numbers were written.
  void RequireHeld(const std::vector<float>& numbers, int64_t written) const {
    if (written == std::ssize(numbers)) return;
    throw Error(
        ExitCode::kUsage,
        fmt::format("`{}` has the value {}, which {} cannot hold", widening_.made.path(),
                    numbers[static_cast<size_t>(written)], InfoOf(widening_.made.dtype()).name));
  }

  float ScaleOf(const uint8_t* stored, float global) const {
    const Tensor& scales = widening_.scales();
    if (widening_.scale == Widening::Scale::kExponent) {
      if (*stored == 255 && widening_.is_exact) {
        throw Error(
            ExitCode::kUsage,
            fmt::format("`{}` has the scale 255, which is not a number: the largest is 254, 2^127",
                        scales.path()));
      }
      return *stored == 255 ? std::numeric_limits<float>::infinity()
                            : std::ldexp(1.0F, *stored - 127);
    }
    // f32 holds every value of the types of scales.
    const auto scale = static_cast<float>(Decode(stored, scales.dtype()));
    if (widening_.scale == Widening::Scale::kByGlobal) return scale / global;
    if (widening_.scale == Widening::Scale::kNested) {
      const float product = widening_.scale_values[*stored] * global;
      return product + widening_.offset;
    }
    return widening_.scale == Widening::Scale::kTimesGlobal ? scale * global : scale;
  }

  std::vector<float> ReadScales(const Rectangle& blocks) const {
    const bool is_nested = widening_.scale == Widening::Scale::kNested;
    float global = 1;
    if (!widening_.parts[Widening::kGlobal].path().empty() && !is_nested) {
      stored_[Widening::kGlobal](0, 1, &global);
    }
    const int64_t width = CeilDiv(widening_.codes.columns, widening_.block_columns);
    const int64_t height = CeilDiv(widening_.codes.rows, widening_.block_rows);
    const int bytes = InfoOf(widening_.scales().dtype()).bytes;
    std::vector<uint8_t> stored(static_cast<size_t>(blocks.columns * bytes));
    std::vector<float> scales;
    scales.reserve(static_cast<size_t>(blocks.rows * blocks.columns));
    for (int64_t row = 0; row < blocks.rows; ++row) {
      const int64_t first = (blocks.matrix * height + blocks.row + row) * width + blocks.column;
      stored_[Widening::kScales](first, blocks.columns, stored.data());
      for (int64_t i = 0; i < blocks.columns; ++i) {
        if (is_nested && (i == 0 || (first + i) % widening_.nested_block == 0)) {
          stored_[Widening::kGlobal]((first + i) / widening_.nested_block, 1, &global);
        }
        scales.push_back(ScaleOf(&stored[static_cast<size_t>(i * bytes)], global));
      }
    }
    return scales;
  }

  std::vector<float> ReadZeros(const Rectangle& blocks) const {
    std::vector<float> zeros(static_cast<size_t>(blocks.rows * blocks.columns));
    if (widening_.parts[Widening::kZeros].path().empty()) return zeros;
    std::vector<uint8_t> codes(zeros.size());
    ReadCodes(widening_.zero_codes, stored_[Widening::kZeros], blocks, codes.data());
    std::transform(codes.begin(), codes.end(), zeros.begin(),
                   [&](uint8_t code) { return widening_.zeros[code]; });
    return zeros;
  }

  const Widening& widening_;
  const float largest_ = LargestRounded(DType::bf16);
  const std::array<BoxElements, Widening::kParts> stored_;
};

}  // namespace

BoxElements Widen(const Widening& widening, std::array<BoxElements, Widening::kParts> stored) {
  for (size_t part = 0; part < Widening::kParts; ++part) {
    if (stored[part] != nullptr && !widening.parts[part].path().empty()) {
      stored[part] = ReadAhead(std::move(stored[part]), widening.parts[part], part);
    }
  }
  const auto computation = std::make_shared<const Computation>(widening, std::move(stored));
  const int64_t size = widening.codes.rows * widening.codes.columns;
  return [computation, size, bytes = InfoOf(widening.made.dtype()).bytes](
             int64_t first, int64_t count, void* out) {
    auto* at = static_cast<uint8_t*>(out);
    while (count > 0) {
      const int64_t now = std::min(count, size - first % size);
      computation->Fill(first / size, first % size, now, at);
      first += now, count -= now, at += now * bytes;
    }
  };
}

}  // namespace shardinit
