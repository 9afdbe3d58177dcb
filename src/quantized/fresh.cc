#include "quantized/fresh.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/checked_math.h"
#include "base/error.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

constexpr float kLargestF8 = 448;
constexpr int64_t kReadAtOnce = 1 << 18;  // elements

// Returns the exponent of the largest value of a code. MX's scales have the exponents of the
// largest numbers, less this one (compressed-tensors 0.20, mxfp_utils.py).
int ExponentOfLargest(int bits) { return bits == 8 ? 8 : 2; }

// Returns the half of the range of values, whose smallest number of a symmetric integer has no
// opposite (compressed-tensors 0.20, calculate_qparams).
float HalfRange(const std::vector<float>& values) {
  float least = 0, most = 0;
  for (const float value : values) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  return (most - least) / 2;
}

// Computes r32(r32(1 / largest) * 448), as torch does for 448 / largest.
// Source: Transformers 5.23, finegrained_fp8.py, Fp8Quantize.
float Reciprocal(float largest) {
  const float inverse = 1 / largest;
  return largest > 0 ? inverse * kLargestF8 : 1;
}

constexpr char kNoScale[] =
    "correct the numbers, or quantize the model with the library of the format";

}  // namespace

FreshScales::FreshScales(const Widening& widening, BoxElements made)
    : widening_(widening),
      made_(std::move(made)),
      width_(CeilDiv(widening.codes.columns, widening.block_columns)),
      height_(CeilDiv(widening.codes.rows, widening.block_rows)) {
  const std::string hint = "leave out `--fresh-scales`, or quantize with the library of the format";
  if (widening.fresh == Widening::Fresh::kNone) {
    throw Usage(fmt::format("`{}`: shardinit cannot compute new scales in this form as its library "
                            "does",
                            widening.numbers().path()),
                hint);
  }
  const DType numbers = widening.made.dtype(), scales = widening.scales().dtype();
  const bool fits = widening.fresh == Widening::Fresh::kRange ? numbers == scales
                    : widening.fresh == Widening::Fresh::kMx  ? numbers != DType::f16
                                                              : true;
  if (fits && numbers != DType::f64) return;
  throw Usage(fmt::format("`{}` is {}, from which its library does not compute such scales of {}",
                          widening.made.path(), InfoOf(numbers).name, InfoOf(scales).name),
              widening.fresh == Widening::Fresh::kRange
                  ? fmt::format("convert the model with `--dtype {}` first", InfoOf(scales).name)
                  : "convert the model with `--dtype bf16` first");
}

float FreshScales::Rounded(float number) const {
  switch (widening_.made.dtype()) {
    case DType::bf16:
      return DecodeBf16(EncodeBf16(number));
    case DType::f16:
      return DecodeF16(EncodeF16(number));
    default:
      return number;
  }
}

std::vector<float> FreshScales::Read(int64_t first, int64_t count) const {
  const int64_t columns = widening_.codes.columns, size = widening_.block_columns;
  const DType dtype = widening_.made.dtype();
  const int64_t bytes = InfoOf(dtype).bytes;
  std::vector<float> largest(static_cast<size_t>(count));
  // Rows from the first block's to the last one's; a block of several rows is only read with all.
  const bool is_row = widening_.block_rows == 1;
  const int64_t begin = is_row ? first / width_ * columns + first % width_ * size : 0;
  const int64_t last = first + count - 1;
  const int64_t end = is_row
                          ? last / width_ * columns + std::min((last % width_ + 1) * size, columns)
                          : widening_.made.elements();
  std::vector<uint8_t> some(static_cast<size_t>(std::min(kReadAtOnce, end - begin) * bytes));
  for (int64_t at = begin; at < end; at += kReadAtOnce) {
    const int64_t now = std::min(kReadAtOnce, end - at);
    made_(at, now, some.data());
    for (int64_t i = 0; i < now; ++i) {
      const int64_t row = (at + i) / columns, column = (at + i) % columns;
      const int64_t of_rows =
          row / widening_.codes.rows * height_ + row % widening_.codes.rows / widening_.block_rows;
      const auto number = static_cast<float>(Decode(&some[static_cast<size_t>(i * bytes)], dtype));
      if (!std::isfinite(number)) {
        throw Usage(
            fmt::format("`{}` has the value {}, which has no scale", widening_.made.path(), number),
            kNoScale);
      }
      float& most = largest[static_cast<size_t>(of_rows * width_ + column / size - first)];
      most = std::max(most, std::fabs(number));
    }
  }
  return largest;
}

std::vector<float> FreshScales::LargestIn(int64_t first, int64_t count) const {
  if (widening_.block_rows == 1) return Read(first, count);
  std::call_once(once_, [&] { largest_ = Read(0, widening_.scales().elements()); });
  return {largest_.begin() + first, largest_.begin() + first + count};
}

void FreshScales::ThrowNoScale(float largest, std::string_view size) const {
  throw Usage(fmt::format("`{}` has a block whose largest magnitude is {}, too {} for a scale",
                          widening_.made.path(), largest, size),
              kNoScale);
}

float FreshScales::ScaleFor(float largest) const {
  switch (widening_.fresh) {
    case Widening::Fresh::kReciprocal:
    case Widening::Fresh::kPowerOfTwo: {
      const float factor = Reciprocal(largest);
      if (!std::isfinite(factor)) ThrowNoScale(largest, "small");
      const float scale = 1 / factor;
      if (widening_.fresh == Widening::Fresh::kReciprocal) return scale;
      const double exponent = std::log2(double{std::max(scale, std::numeric_limits<float>::min())});
      return std::ldexp(1.0F, static_cast<int>(std::ceil(static_cast<float>(exponent))));
    }
    case Widening::Fresh::kMx: {
      // Adds a unit of the code's mantissa, halved, and keeps the exponent.
      const int shift = widening_.codes.bits == 6 ? 19 : 21;
      const auto exponent =
          static_cast<int>((std::bit_cast<uint32_t>(largest) + (1u << shift)) >> 23);
      if (exponent == 255) ThrowNoScale(largest, "large");
      const int least = exponent == 0 ? 0 : ExponentOfLargest(widening_.codes.bits);
      return std::ldexp(1.0F, std::max(exponent - least, 0) - 127);
    }
    default: {
      const float scale = Rounded(largest / HalfRange(widening_.values));
      if (scale != 0) return scale;
      return std::ldexp(1.0F, -InfoOf(widening_.made.dtype()).mantissa_bits);
    }
  }
}

void FreshScales::Fill(int64_t first, int64_t count, void* out) const {
  const DType dtype = widening_.scales().dtype();
  auto* to = static_cast<uint8_t*>(out);
  for (const float largest : LargestIn(first, count)) {
    const float scale = ScaleFor(largest);
    if (InfoOf(dtype).bytes == 1) {
      *to = static_cast<uint8_t>(std::ilogb(scale) + 127);
    } else {
      Encode(scale, dtype, to);
    }
    to += InfoOf(dtype).bytes;
  }
}

float FreshScales::FactorOf(int64_t block) const {
  if (widening_.fresh == Widening::Fresh::kReciprocal) {
    return Reciprocal(LargestIn(block, 1).front());
  }
  return 1;
}

float FreshScales::Scaled(float number, float scale, float factor) const {
  switch (widening_.fresh) {
    case Widening::Fresh::kReciprocal:
      return number * factor;
    case Widening::Fresh::kPowerOfTwo:
      return number * (1 / scale);
    default: {
      const float scaled = Rounded(number / scale);
      // compressed-tensors multiplies numbers of 4 bits by their sign, which is 0 for -0.
      const bool has_no_negative_zero = widening_.codes.bits == 4 && scaled == 0;
      return has_no_negative_zero ? 0 : scaled;
    }
  }
}

}  // namespace shardinit
