// Element types: their names, sizes and how HDF5 stores them.
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

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // As specs and checkpoints write it: `bf16`.
  int bytes;
  // The IEEE-like layout that HDF5 is told: all have the sign on top, then the
  // exponent, then the mantissa, with an implied leading one.
  int exponent_bits;
  int mantissa_bits;
};

const DTypeInfo& InfoOf(DType dtype);
// The largest finite number of the type; larger ones round to infinity.
double LargestOf(DType dtype);
std::span<const DTypeInfo> DTypes();
std::optional<DType> FindDType(std::string_view name);
// By a name that PyTorch or NumPy gives it (`bfloat16`), for "did you mean".
std::optional<DType> FindDTypeByOtherName(std::string_view name);
std::vector<std::string> DTypeNames();

}  // namespace shardinit
