#include "quantized/fresh.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked_math.h"
#include "base/error.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

constexpr float kLargestF8 = 448, kLargestF4 = 6;
constexpr int64_t kReadAtOnce = 1 << 18;  // elements

// Returns the exponent of the largest value of a code. MX's scales have the exponents of the
// largest numbers, less this one (compressed-tensors 0.20, mxfp_utils.py).
int ExponentOfLargest(int bits) { return bits == 8 ? 8 : 2; }

// Computes r32(r32(1 / largest) * 448), as torch does for 448 / largest.
// Source: Transformers 5.23, finegrained_fp8.py, Fp8Quantize.
float Reciprocal(float largest) {
  const float inverse = 1 / largest;
  return largest > 0 ? inverse * kLargestF8 : 1;
}

// Returns the type of numbers that the library computes such scales from; `numbers` if it fits.
DType NeededType(const Widening& widening, DType numbers) {
  switch (widening.fresh) {
    case Widening::Fresh::kRange:
      return widening.scales().dtype();
    case Widening::Fresh::kLargest:  // bitsandbytes rounds numbers to f16 for codes of 8 bits
      return widening.codes.bits == 8 ? DType::f16 : widening.through;
    case Widening::Fresh::kMx:
      return numbers == DType::f32 ? numbers : DType::bf16;
    default:
      return numbers == DType::f64 ? DType::bf16 : numbers;
  }
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
    throw Usage(fmt::format("`{}`: shardinit cannot compute new scales in this form: {}",
                            widening.numbers().path(), widening.unknown),
                hint);
  }
  const DType numbers = widening.made.dtype(), needed = NeededType(widening, numbers);
  if (numbers == needed) return;
  throw Usage(fmt::format("`{}` is {}, from which its library does not compute such scales of {}",
                          widening.made.path(), InfoOf(numbers).name,
                          InfoOf(widening.scales().dtype()).name),
              fmt::format("convert the model with `--dtype {}` first", InfoOf(needed).name));
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

void FreshScales::Range::Include(Range other) {
  least = std::min(least, other.least);
  most = std::max(most, other.most);
}

float FreshScales::Range::Largest() const { return std::max(std::fabs(least), most); }

std::vector<FreshScales::Range> FreshScales::Read(int64_t first, int64_t count) const {
  const int64_t columns = widening_.codes.columns, size = widening_.block_columns;
  const DType dtype = widening_.made.dtype();
  const int64_t bytes = InfoOf(dtype).bytes;
  std::vector<Range> ranges(static_cast<size_t>(count));
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
      ranges[static_cast<size_t>(of_rows * width_ + column / size - first)].Include(
          {number, number});
    }
  }
  return ranges;
}

const std::vector<FreshScales::Range>& FreshScales::Known() const {
  std::call_once(once_, [&] {
    const int64_t blocks = widening_.scales().elements();
    if (widening_.block_rows > 1) {
      known_ = Read(0, blocks);
      return;
    }
    Range whole;
    const int64_t most = std::max<int64_t>(1, kReadAtOnce / widening_.block_columns);
    for (int64_t first = 0; first < blocks; first += most) {
      for (const Range& each : Read(first, std::min(most, blocks - first))) whole.Include(each);
    }
    known_ = {whole};
  });
  return known_;
}

std::vector<FreshScales::Range> FreshScales::RangesOf(int64_t first, int64_t count) const {
  if (widening_.block_rows == 1) return Read(first, count);
  return {Known().begin() + first, Known().begin() + first + count};
}

void FreshScales::ThrowNoScale(float largest, std::string_view size) const {
  throw Usage(fmt::format("`{}` has a block whose largest magnitude is {}, too {} for a scale",
                          widening_.made.path(), largest, size),
              kNoScale);
}

float FreshScales::ScaleFor(Range range) const {
  const float largest = range.Largest();
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
    case Widening::Fresh::kNvfp4:
      return NvScaleFor(largest);
    case Widening::Fresh::kLargest:
      return largest;
    case Widening::Fresh::kF32Range: {
      const float scale = largest / kLargestF8;
      if (scale == 0) ThrowNoScale(largest, "small");
      return scale;
    }
    default: {
      const float scale = RangeScaleFor(range);
      return scale != 0 ? scale : std::ldexp(1.0F, -InfoOf(widening_.made.dtype()).mantissa_bits);
    }
  }
}

// Source: compressed-tensors 0.20, calculate_qparams.
float FreshScales::RangeScaleFor(Range range) const {
  const auto [least, most] = std::ranges::minmax(
      widening_.values, {}, [](float value) { return std::isnan(value) ? 0 : value; });
  // The least value of a symmetric integer has no opposite.
  if (!has_zeros()) return Rounded(range.Largest() / ((most - least) / 2));
  const float extent = Rounded(range.most - range.least);
  if (!std::isfinite(extent)) ThrowNoScale(range.Largest(), "large");
  return Rounded(extent / (most - least));
}

float FreshScales::ZeroFor(Range range) const {
  const auto [least, most] = std::ranges::minmax(widening_.values);
  const float zero = Rounded(least - Rounded(range.least / RangeScaleFor(range)));
  // A block of zeros has the zero NaN, which torch converts to 0.
  return std::isnan(zero) ? 0 : std::nearbyint(std::clamp(zero, least, most));
}

// Sources: compressed-tensors 0.20, generate_gparam; ModelOpt 0.47, nvfp4_tensor.py.
float FreshScales::Global() const {
  const float largest = Known().front().Largest();
  if (widening_.scale == Widening::Scale::kTimesGlobal) {
    const float scale = largest / (kLargestF4 * kLargestF8);
    if (scale == 0) ThrowNoScale(largest, "small");
    return scale;
  }
  const float least = widening_.made.dtype() == DType::f16 ? 0x1p-14F : 0x1p-126F;
  const float inverse = Rounded(1 / std::max(largest, least));
  const float scale = Rounded(inverse * (kLargestF4 * kLargestF8));
  return std::isinf(scale) ? 1 : scale;
}

float FreshScales::NvScaleFor(float largest) const {
  const auto in_f8 = [](float scale) { return DecodeF8E4M3Fn(EncodeF8E4M3Fn(scale)); };
  const float global = Global();
  if (widening_.scale == Widening::Scale::kByGlobal) {
    const float scale = in_f8(std::min(global * Rounded(largest / kLargestF4), kLargestF8));
    return scale != 0 ? scale : 0.125F;
  }
  const float wanted = largest / (kLargestF4 * global);
  const float scale = in_f8(wanted != 0 ? std::clamp(wanted, 0x1p-9F, kLargestF8) : 1);
  if (scale * global == 0) ThrowNoScale(largest, "small");
  return scale;
}

void FreshScales::FillZeros(const StoredPart& part) const {
  const CodeMatrices& codes = widening_.zero_codes;
  const Rectangle blocks = CodesIn(codes, part);
  for (int64_t row = blocks.row; row < blocks.row + blocks.rows; ++row) {
    const int64_t first = (blocks.matrix * height_ + row) * width_ + blocks.column;
    int64_t column = blocks.column;
    for (const Range& range : RangesOf(first, blocks.columns)) {
      const auto code = static_cast<int>(ZeroFor(range) - widening_.zeros[0]);
      WriteCode(codes, part, row, column++, static_cast<uint8_t>(code));
    }
  }
}

void FreshScales::Fill(Widening::Part part, int64_t first, int64_t count, void* out) const {
  const DType dtype = widening_.parts[part].dtype();
  auto* to = static_cast<uint8_t*>(out);
  if (part == Widening::kGlobal) return Encode(Global(), dtype, out);
  if (part == Widening::kZeros) {
    std::memset(out, 0, static_cast<size_t>(count * InfoOf(dtype).bytes));
    for (const StoredPart& each : PartsIn(widening_.zero_codes, first, count, count, to)) {
      FillZeros(each);
    }
    return;
  }
  const bool is_exponent = dtype == DType::u8 || dtype == DType::f8e8m0;
  for (const Range& range : RangesOf(first, count)) {
    const float scale = ScaleFor(range);
    if (is_exponent) {
      *to = static_cast<uint8_t>(std::ilogb(scale) + 127);
    } else {
      Encode(scale, dtype, to);
    }
    to += InfoOf(dtype).bytes;
  }
}

float FreshScales::FactorOf(int64_t block, float scale) const {
  if (widening_.fresh == Widening::Fresh::kReciprocal) {
    return Reciprocal(RangesOf(block, 1).front().Largest());
  }
  if (widening_.fresh != Widening::Fresh::kLargest) return 1;
  // Source: bitsandbytes 0.50, backends/default/ops.py.
  if (widening_.codes.bits == 4) return 1 / std::max(scale, 1e-38F);
  const float inverse = 1 / scale;
  return scale > 0 ? inverse * 127 : 0;
}

std::vector<float> FreshScales::Values() const {
  std::vector<float> values = widening_.values;
  // ModelOpt writes a -0 that it reads as 0.
  if (widening_.fresh == Widening::Fresh::kNvfp4) values[8] = -0.0F;
  return values;
}

float FreshScales::Scaled(float number, float scale, float zero, float factor) const {
  switch (widening_.fresh) {
    case Widening::Fresh::kReciprocal:
      return number * factor;
    case Widening::Fresh::kPowerOfTwo:
      return number * (1 / scale);
    case Widening::Fresh::kLargest: {
      const float most = widening_.codes.bits == 4 ? 1 : 127;
      return std::clamp(number * factor, -most, most);
    }
    default: {
      const bool is_f32 = widening_.fresh == Widening::Fresh::kNvfp4;
      float scaled = is_f32 ? number / scale : Rounded(number / scale);
      if (has_zeros()) scaled = Rounded(scaled + zero);
      // A tie takes the even code, which is the one of -1 for one bit, but torch rounds -0.5 to 0.
      if (widening_.codes.bits == 1 && scaled == -0.5F) return 0;
      // compressed-tensors multiplies numbers of 4 bits by their sign, which is 0 for -0. ModelOpt
      // takes the sign of numbers less than 0.
      const bool has_no_negative_zero = widening_.codes.bits == 4 && scaled == 0;
      return has_no_negative_zero ? 0 : scaled;
    }
  }
}

}  // namespace shardinit
