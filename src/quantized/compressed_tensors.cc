// Finds tensors of compressed-tensors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/checked_math.h"
#include "quantized/search.h"

namespace shardinit {
namespace {

void RequireFloats(const Tensor& numbers, const Tensor& scales) {
  if (IsFloatScale(scales.dtype())) return;
  ThrowUnreadable(numbers, fmt::format("{}, not f32, f16 or bf16", Described(scales)));
}

void RequireExponents(const Tensor& numbers, const Tensor& scales) {
  if (scales.dtype() == DType::u8) return;
  ThrowUnreadable(numbers, fmt::format("{}, not u8", Described(scales)));
}

// Returns the number of bits that the config gives and the shape allows.
int BitsOf(Search& search, const Tensor& numbers, int64_t columns) {
  std::set<int64_t> fitting;
  for (const int64_t bits : search.config().Bits()) {
    if (bits <= 8 && CeilDiv(columns * bits, 32) == numbers.shape().back()) fitting.insert(bits);
  }
  if (fitting.size() != 1) {
    ThrowUnreadable(
        numbers,
        fmt::format("rows of {} numbers in {} words fit {} of the num_bits in config.json", columns,
                    numbers.shape().back(), fitting.empty() ? "none" : "several"));
  }
  return static_cast<int>(*fitting.begin());
}

// Takes the zeros of blocks, which are packed like the numbers, but along columns.
void TakePackedZeros(Widening* widening, const Tensor& zeros) {
  const CodeMatrices& codes = widening->codes;
  const int64_t rows = CeilDiv(codes.rows, widening->block_rows);
  const int64_t columns = CeilDiv(codes.columns, widening->block_columns);
  const Shape wanted =
      WithMatrix(widening->numbers().shape(), CeilDiv(rows * codes.bits, 32), columns);
  if (zeros.dtype() != DType::i32 || zeros.shape() != wanted) {
    ThrowUnreadable(widening->numbers(),
                    fmt::format("{}, not i32 [{}]", Described(zeros), fmt::join(wanted, ", ")));
  }
  widening->parts[Widening::kZeros] = zeros;
  widening->zeros = widening->values;
  widening->zero_codes = {Packing::kAlongColumns, codes.bits, rows, columns, columns, 4};
}

// Throws if the config contradicts the zeros. Bytes may have some that the config does not
// announce, which compressed-tensors subtracts.
void RequireZeros(const Search& search, const Widening& widening) {
  const std::set<bool> symmetric = search.config().AreSymmetric();
  const bool has_zeros = !widening.parts[Widening::kZeros].path().empty();
  const bool is_packed = widening.codes.packing != Packing::kBytes;
  if (symmetric != std::set<bool>{has_zeros} || (has_zeros && !is_packed)) return;
  ThrowUnreadable(widening.numbers(),
                  has_zeros ? "it has a weight_zero_point, but symmetric of config.json is true"
                            : "it has no weight_zero_point, but symmetric of config.json is false");
}

Widening PackedIntegers(Search& search, const Tensor& numbers, const Tensor& scales,
                        const std::string& around) {
  const std::string path = around + ".weight_shape";
  const Tensor& shape = search.Need(numbers, path);
  const Shape& stored = numbers.shape();
  std::vector<int64_t> size;
  if (shape.elements() > static_cast<int64_t>(kMaxRank)) {
    ThrowUnreadable(shape, "it has too many elements for a shape");
  }
  for (const double extent : search.Read(shape)) {
    size.push_back(std::fabs(extent) < 0x1p62 ? static_cast<int64_t>(extent) : -1);
  }
  if (size.size() < 2 || size[size.size() - 2] != stored[stored.size() - 2] || size.back() < 1 ||
      size.back() / 32 > stored.back()) {
    ThrowUnreadable(numbers, fmt::format("it is i32 [{}], but `{}` is {}", fmt::join(stored, ", "),
                                         path, fmt::join(size, " x ")));
  }
  const int64_t columns = size.back();
  const int bits = BitsOf(search, numbers, columns);
  Widening widening = search.Begin(numbers,
                                   {.packing = Packing::kAlongRows,
                                    .bits = bits,
                                    .rows = stored[stored.size() - 2],
                                    .columns = columns},
                                   WholeValues(bits, 1 << (bits - 1)));
  RequireFloats(numbers, scales);
  search.TakeScalesByShape(&widening, scales);
  widening.through = scales.dtype();
  search.Leave(&widening, path);
  if (const Tensor* const zeros = search.TensorAt(around + ".weight_zero_point")) {
    TakePackedZeros(&widening, *zeros);
  }
  RequireZeros(search, widening);
  widening.fresh = Widening::Fresh::kRange;
  return widening;
}

Widening PackedFloats(Search& search, const Tensor& numbers, const Tensor& scales,
                      const std::string& around) {
  const Shape& stored = numbers.shape();
  const Tensor* const global = search.TensorAt(around + ".weight_global_scale");
  if (numbers.dtype() != DType::u8) ThrowUnreadable(numbers, "it is neither i32 nor u8");
  const int64_t bytes = stored.back(), scaled = scales.shape().empty() ? 0 : scales.shape().back();
  const bool has_six = global == nullptr && bytes * 4 == scaled * kMxNumbers * 3;
  Widening widening = search.Begin(numbers,
                                   {.packing = Packing::kAlongRows,
                                    .bits = has_six ? 6 : 4,
                                    .rows = stored[stored.size() - 2],
                                    .columns = has_six ? bytes / 3 * 4 : bytes * 2},
                                   ValuesOf(has_six ? DType::f6e2m3fn : DType::f4e2m1fn));
  widening.through = DType::bf16;
  if (global != nullptr) {
    RequireGlobal(numbers, scales, *global, {1});
    widening.parts[Widening::kGlobal] = *global;
    widening.scale = Widening::Scale::kByGlobal;
    if (stored.size() == 2) widening.fresh = Widening::Fresh::kNvfp4;
    widening.unknown = "compressed-tensors quantizes only matrices";
    search.TakeGroups(&widening, scales, kNvNumbers);
  } else {
    RequireExponents(numbers, scales);
    widening.scale = Widening::Scale::kExponent;
    widening.fresh = Widening::Fresh::kMx;
    search.TakeGroups(&widening, scales, kMxNumbers);
  }
  return widening;
}

void TakeByteZeros(Widening* widening, const Tensor& scales, const Tensor& zeros) {
  if (zeros.dtype() != widening->numbers().dtype() || zeros.dtype() != DType::i8 ||
      zeros.shape() != scales.shape()) {
    ThrowUnreadable(widening->numbers(), fmt::format("{}, not i8 [{}]", Described(zeros),
                                                     fmt::join(scales.shape(), ", ")));
  }
  const int64_t rows = CeilDiv(widening->codes.rows, widening->block_rows);
  const int64_t columns = CeilDiv(widening->codes.columns, widening->block_columns);
  widening->parts[Widening::kZeros] = zeros;
  widening->zeros = ValuesOf(DType::i8);
  widening->zero_codes = {Packing::kBytes, 8, rows, columns, columns, 1};
}

}  // namespace

// compressed-tensors: integers of 1 to 8 bits in words, or small floats in bytes.
bool FindPacked(Search& search, const Tensor& numbers, const std::string& around) {
  const Tensor& scales = search.Need(numbers, around + ".weight_scale");
  if (numbers.shape().size() < 2) ThrowUnreadable(numbers, "it is not a matrix");
  Widening widening = numbers.dtype() == DType::i32
                          ? PackedIntegers(search, numbers, scales, around)
                          : PackedFloats(search, numbers, scales, around);
  Make(&widening, around + ".weight",
       WithMatrix(numbers.shape(), widening.codes.rows, widening.codes.columns));
  search.LeaveActivations(&widening, around);
  search.Add(std::move(widening));
  return true;
}

// compressed-tensors and ModelOpt: a byte for each number.
bool FindBytes(Search& search, const Tensor& numbers, const std::string& around) {
  const Tensor* const scales = search.TensorAt(around + ".weight_scale");
  const bool is_f8 = numbers.dtype() == DType::f8e4m3fn;
  const bool is_known = search.config().method() == "compressed-tensors" ||
                        search.config().method() == "modelopt" ||
                        search.config().method() == "mxfp8";
  if (scales == nullptr || !is_known || numbers.shape().size() < 2 ||
      (!is_f8 && numbers.dtype() != DType::i8)) {
    return false;
  }
  const Shape& shape = numbers.shape();
  Widening widening =
      search.Begin(numbers, {.rows = shape[shape.size() - 2], .columns = shape.back()},
                   is_f8 ? ValuesOf(DType::f8e4m3fn) : ValuesOf(DType::i8));
  if (scales->dtype() == DType::u8) {
    widening.scale = Widening::Scale::kExponent;
    widening.through = DType::bf16;
    search.TakeGroups(&widening, *scales, kMxNumbers);
  } else {
    RequireFloats(numbers, *scales);
    search.TakeScalesByShape(&widening, *scales);
    widening.through = scales->dtype();
  }
  const Tensor* const zeros = search.TensorAt(around + ".weight_zero_point");
  if (zeros != nullptr) TakeByteZeros(&widening, *scales, *zeros);
  if (zeros != nullptr && search.config().AreSymmetric() == std::set<bool>{true}) {
    widening.unknown = "it has a weight_zero_point, but symmetric of config.json is true";
  } else if (search.config().method() == "compressed-tensors") {
    widening.fresh = scales->dtype() == DType::u8 ? Widening::Fresh::kMx : Widening::Fresh::kRange;
  } else if (is_f8 && scales->dtype() == DType::f32 && scales->shape().empty()) {
    widening.fresh = Widening::Fresh::kF32Range;
  } else {
    widening.unknown = "the rule is known only for one f32 scale of a matrix of f8e4m3fn";
  }
  RequireZeros(search, widening);
  search.LeaveActivations(&widening, around);
  search.Add(std::move(widening));
  return true;
}

}  // namespace shardinit
