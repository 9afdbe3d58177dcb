#include "quantized/widening.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "base/checked_math.h"
#include "base/error.h"
#include "tensor/convert.h"
#include "tensor/encode-inl.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

constexpr int64_t kElementsAtOnce = 1 << 18;

float Rounded(float number, DType through) {
  if (through == DType::bf16)
    return DecodeBf16(static_cast<uint16_t>(encoding::Bf16(std::bit_cast<uint32_t>(number))));
  if (through == DType::f16) return DecodeF16(EncodeF16(number));
  return number;
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
    const int64_t bytes = InfoOf(widening_.made.dtype()).bytes;
    const uint8_t* code = codes.data();
    std::vector<float> numbers(static_cast<size_t>(part.columns));
    for (int64_t row = 0; row < part.rows; ++row) {
      const int64_t of_row = ((part.row + row) / block_rows - blocks.row) * blocks.columns;
      for (int64_t column = 0; column < part.columns;) {
        const int64_t block = (part.column + column) / block_columns;
        const int64_t end = std::min(part.columns, (block + 1) * block_columns - part.column);
        const auto at = static_cast<size_t>(of_row + block - blocks.column);
        Multiply(code, end - column, zeros[at], scales[at], &numbers[static_cast<size_t>(column)]);
        code += end - column, column = end;
      }
      Store(numbers, column_stride * bytes, out + row * row_stride * bytes);
    }
  }

  // Computes the numbers of codes of one block.
  void Multiply(const uint8_t* codes, int64_t count, float zero, float scale, float* out) const {
    const float* const values = widening_.values.data();
    for (int64_t i = 0; i < count; ++i) out[i] = (values[codes[i]] - zero) * scale;
    if (widening_.times != 1) {
      for (int64_t i = 0; i < count; ++i) out[i] *= widening_.times;
    }
    if (widening_.is_exact && std::isfinite(scale)) RequireFinite(codes, count, scale, out);
    for (int64_t i = 0; i < count; ++i) out[i] = Rounded(out[i], widening_.through);
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

  // Writes numbers in the requested type, `stride` bytes apart. Convert() is slow and also finds
  // numbers that the type cannot hold; bf16 is encoded here.
  void Store(const std::vector<float>& numbers, int64_t stride, uint8_t* out) const {
    const DType dtype = widening_.made.dtype();
    const float largest = dtype == DType::bf16 ? LargestRounded(dtype) : -1;
    for (const float& number : numbers) {
      if (std::fabs(number) <= largest) {
        const auto bits = static_cast<uint16_t>(encoding::Bf16(std::bit_cast<uint32_t>(number)));
        std::memcpy(out, &bits, sizeof bits);
      } else if (!Convert(&number, DType::f32, dtype, out)) {
        throw Error(ExitCode::kUsage,
                    fmt::format("`{}` has the value {}, which {} cannot hold",
                                widening_.made.path(), number, InfoOf(dtype).name));
      }
      out += stride;
    }
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
  const std::array<BoxElements, Widening::kParts> stored_;
};

}  // namespace

BoxElements Widen(const Widening& widening, std::array<BoxElements, Widening::kParts> stored) {
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
