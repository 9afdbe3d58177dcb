#include "quantized/block_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked_math.h"
#include "base/error.h"
#include "tensor/convert.h"
#include "tensor/encode-inl.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

float RoundedToBf16(float number) {
  const uint32_t bits = encoding::Bf16(std::bit_cast<uint32_t>(number));
  return std::bit_cast<float>(bits << 16);
}

// Copies the elements of codes, `stride` bytes apart.
template <typename T>
void LookUp(const uint8_t* codes, int64_t count, const uint8_t* table, int64_t stride,
            uint8_t* out) {
  for (int64_t i = 0; i < count; ++i, out += stride) {
    std::memcpy(out, table + codes[i] * sizeof(T), sizeof(T));
  }
}

}  // namespace

std::vector<BlockValues::Block> BlockValues::BlocksIn(const Rectangle& part) const {
  const int64_t block_rows = widening_.block_rows, block_columns = widening_.block_columns;
  Rectangle blocks = {part.matrix, part.row / block_rows, part.column / block_columns, 0, 0};
  blocks.rows = (part.row + part.rows - 1) / block_rows + 1 - blocks.row;
  blocks.columns = (part.column + part.columns - 1) / block_columns + 1 - blocks.column;
  const std::vector<float> scales = ReadScales(blocks), zeros = ReadZeros(blocks);
  std::vector<Block> found;
  found.reserve(scales.size());
  for (size_t b = 0; b < scales.size(); ++b) {
    const auto at = static_cast<int64_t>(b);
    const int64_t row = (blocks.row + at / blocks.columns) * block_rows - part.row;
    const int64_t column = (blocks.column + at % blocks.columns) * block_columns - part.column;
    found.push_back({std::max<int64_t>(row, 0), std::max<int64_t>(column, 0),
                     std::min(row + block_rows, part.rows),
                     std::min(column + block_columns, part.columns), zeros[b], scales[b]});
  }
  return found;
}

const uint8_t* BlockValues::TableOf(const Block& block, Scratch* scratch) const {
  const int64_t bytes = InfoOf(widening_.made.dtype()).bytes;
  if (bytes == 1) return nullptr;
  const size_t kinds = widening_.values.size();
  scratch->numbers.resize(kinds);
  scratch->table.resize(kinds * static_cast<size_t>(bytes));
  float* const numbers = scratch->numbers.data();
  for (size_t i = 0; i < kinds; ++i) numbers[i] = (widening_.values[i] - block.zero) * block.scale;
  if (widening_.is_exact &&
      std::any_of(numbers, numbers + kinds, [](float product) { return std::isinf(product); })) {
    return nullptr;
  }
  Finish(static_cast<int64_t>(kinds), numbers);
  const bool is_held =
      Store(scratch->numbers, bytes, scratch->table.data()) == std::ssize(scratch->numbers);
  return is_held ? scratch->table.data() : nullptr;
}

bool BlockValues::ElementOf(uint8_t code, const Block& block, uint8_t* out) const {
  std::vector<float> number = {(widening_.values[code] - block.zero) * block.scale};
  Finish(1, number.data());
  return Store(number, InfoOf(widening_.made.dtype()).bytes, out) == 1;
}

void BlockValues::Fill(const Rectangle& part, const uint8_t* codes, int64_t row_stride,
                       int64_t column_stride, uint8_t* out) const {
  const int64_t bytes = InfoOf(widening_.made.dtype()).bytes, stride = column_stride * bytes;
  Scratch scratch;
  for (const Block& block : BlocksIn(part)) {
    const int64_t columns = block.end_column - block.column;
    const bool has_many = columns * (block.end_row - block.row) >= std::ssize(widening_.values);
    const uint8_t* const table = has_many ? TableOf(block, &scratch) : nullptr;
    for (int64_t row = block.row; row < block.end_row; ++row) {
      const uint8_t* const code = codes + row * part.columns + block.column;
      uint8_t* const to = out + (row * row_stride + block.column * column_stride) * bytes;
      if (table == nullptr) {
        Compute(code, columns, block, stride, to, &scratch);
      } else if (bytes == 2) {
        LookUp<uint16_t>(code, columns, table, stride, to);
      } else if (bytes == 4) {
        LookUp<uint32_t>(code, columns, table, stride, to);
      } else {
        LookUp<uint64_t>(code, columns, table, stride, to);
      }
    }
  }
}

void BlockValues::Compute(const uint8_t* codes, int64_t count, const Block& block, int64_t stride,
                          uint8_t* out, Scratch* scratch) const {
  scratch->numbers.resize(static_cast<size_t>(count));
  Multiply(codes, count, block.zero, block.scale, scratch->numbers.data());
  const int64_t written = Store(scratch->numbers, stride, out);
  if (written == count) return;
  throw Error(ExitCode::kUsage,
              fmt::format("`{}` has the value {}, which {} cannot hold", widening_.made.path(),
                          scratch->numbers[static_cast<size_t>(written)],
                          InfoOf(widening_.made.dtype()).name));
}

// Computes the numbers of codes of one block.
void BlockValues::Multiply(const uint8_t* codes, int64_t count, float zero, float scale,
                           float* out) const {
  const float* const values = widening_.values.data();
  for (int64_t i = 0; i < count; ++i) out[i] = (values[codes[i]] - zero) * scale;
  if (widening_.is_exact && std::isfinite(scale)) RequireFinite(codes, count, scale, out);
  Finish(count, out);
}

// Does what follows the first multiplication.
void BlockValues::Finish(int64_t count, float* numbers) const {
  if (widening_.times != 1) {
    for (int64_t i = 0; i < count; ++i) numbers[i] *= widening_.times;
  }
  // Store() rounds to bf16, too.
  if (widening_.through == DType::bf16 && widening_.made.dtype() != DType::bf16) {
    for (int64_t i = 0; i < count; ++i) numbers[i] = RoundedToBf16(numbers[i]);
  } else if (widening_.through == DType::f16) {
    for (int64_t i = 0; i < count; ++i) numbers[i] = DecodeF16(EncodeF16(numbers[i]));
  }
}

void BlockValues::RequireFinite(const uint8_t* codes, int64_t count, float scale,
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
int64_t BlockValues::Store(const std::vector<float>& numbers, int64_t stride, uint8_t* out) const {
  const DType dtype = widening_.made.dtype();
  const int64_t count = std::ssize(numbers);
  if (dtype == DType::bf16) {
    static const float largest = LargestRounded(DType::bf16);
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
    if (most <= largest || widening_.through == DType::bf16) return count;
  }
  for (int64_t i = 0; i < count; ++i, out += stride) {
    if (!Convert(&numbers[static_cast<size_t>(i)], DType::f32, dtype, out)) return i;
  }
  return count;
}

float BlockValues::ScaleOf(const uint8_t* stored, float global) const {
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

std::vector<float> BlockValues::ReadScales(const Rectangle& blocks) const {
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

std::vector<float> BlockValues::ReadZeros(const Rectangle& blocks) const {
  std::vector<float> zeros(static_cast<size_t>(blocks.rows * blocks.columns));
  if (widening_.parts[Widening::kZeros].path().empty()) return zeros;
  std::vector<uint8_t> codes(zeros.size());
  ReadCodes(widening_.zero_codes, stored_[Widening::kZeros], blocks, codes.data());
  std::transform(codes.begin(), codes.end(), zeros.begin(),
                 [&](uint8_t code) { return widening_.zeros[code]; });
  return zeros;
}

}  // namespace shardinit
