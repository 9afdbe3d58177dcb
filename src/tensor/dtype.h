// Describes element types: their names, sizes, limits and HDF5 storage.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

enum class DType : uint8_t {
#define SHARDINIT_DTYPE(name, ...) name,
#include "tensor/dtype.def"
#undef SHARDINIT_DTYPE
};

enum class DTypeKind : uint8_t {
  kFloat,        // laid out as in IEEE 754
  kFiniteFloat,  // as in IEEE 754 without infinities: the numbers of the largest exponent are
                 // finite except the last, which is NaN
  kSigned,       // two's complement
  kUnsigned,
  kBool,     // a byte, 0 or 1
  kCarried,  // other numbers of other tools, which are carried as they are
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // as written in specs and checkpoints: `bf16`
  DTypeKind kind;
  int bytes;
  // The layout of a float, for HDF5. All floats have the sign on top, then the exponent, then the
  // mantissa with an implied leading one.
  int exponent_bits;
  int mantissa_bits;
  // The numbers in an element. Numbers of 4 or 6 bits share whole bytes: an element consists of
  // neighbours in the last dimension, the first of them in the lowest bits. Shapes count elements;
  // InNumbers() returns the shape that is shown.
  int numbers;

  constexpr bool is_float() const {
    return kind == DTypeKind::kFloat || kind == DTypeKind::kFiniteFloat;
  }
  // Returns whether elements may be fractions.
  constexpr bool has_fractions() const { return is_float() || kind == DTypeKind::kCarried; }
};

inline constexpr DTypeInfo kDTypes[] = {
#define SHARDINIT_DTYPE(id, name, kind, bytes, exponent_bits, mantissa_bits, numbers) \
  {DType::id, name, DTypeKind::kind, bytes, exponent_bits, mantissa_bits, numbers},
#include "tensor/dtype.def"
#undef SHARDINIT_DTYPE
};

constexpr const DTypeInfo& InfoOf(DType dtype) { return kDTypes[static_cast<int>(dtype)]; }
constexpr std::span<const DTypeInfo> DTypes() { return kDTypes; }

// Converts a shape, an index or an offset of elements to one of numbers.
std::vector<int64_t> InNumbers(std::vector<int64_t> place, DType dtype);
// Does the reverse. Returns nothing if elements would be cut.
std::optional<std::vector<int64_t>> InElements(std::vector<int64_t> place, DType dtype);

// Return the smallest and the largest number that a spec may put into an element. For floats these
// are the finite limits, for integers the limits of the type. 64-bit integers must also be less
// than 2^53 from 0: specs compute in f64, which rounds larger whole numbers.
double LowestOf(DType dtype);
double LargestOf(DType dtype);
// Returns the largest f32 that rounds to a finite number of a float of at most 32 bits.
float LargestRounded(DType dtype);
// Returns whether an element can be `value`, rounded if the type is a float. The value must be
// finite and, for an integer, whole and within the limits.
bool Holds(DType dtype, double value);
// Describes the numbers of an integer type, for messages: "whole numbers from -128 to 127".
std::string DescribeRange(DType dtype);

std::optional<DType> FindDType(std::string_view name);
// Does the same for the types that specs have: all but those of kCarried.
std::optional<DType> FindDTypeOfSpecs(std::string_view name);
// Finds a type by its name in PyTorch, NumPy or JAX (`torch.bfloat16`), for "did you mean".
std::optional<DType> FindDTypeByOtherName(std::string_view name);
std::vector<std::string> DTypeNames();  // of specs

}  // namespace shardinit
