// Lists the names of the element types in other systems.
#pragma once

#include <iterator>
#include <string_view>

#include "tensor/dtype.h"

namespace shardinit {

// A system that lacks a type has an empty name for it.
struct ForeignNames {
  DType dtype;
  std::string_view safetensors;
  std::string_view torch;    // the name in the module `torch`
  std::string_view storage;  // class of storages; empty for types that came with `UntypedStorage`
  std::string_view zarr;     // NumPy's name in zarr 2, or TensorStore's if NumPy lacks the type
};

inline constexpr ForeignNames kForeignNames[] = {
    {DType::f32, "F32", "float32", "FloatStorage", "<f4"},
    {DType::f64, "F64", "float64", "DoubleStorage", "<f8"},
    {DType::bf16, "BF16", "bfloat16", "BFloat16Storage", "bfloat16"},
    {DType::f16, "F16", "float16", "HalfStorage", "<f2"},
    {DType::f8e4m3fn, "F8_E4M3", "float8_e4m3fn", "", "float8_e4m3fn"},
    {DType::f8e5m2, "F8_E5M2", "float8_e5m2", "", "float8_e5m2"},
    {DType::i8, "I8", "int8", "CharStorage", "|i1"},
    {DType::i16, "I16", "int16", "ShortStorage", "<i2"},
    {DType::i32, "I32", "int32", "IntStorage", "<i4"},
    {DType::i64, "I64", "int64", "LongStorage", "<i8"},
    {DType::u8, "U8", "uint8", "ByteStorage", "|u1"},
    {DType::u16, "U16", "uint16", "", "<u2"},
    {DType::u32, "U32", "uint32", "", "<u4"},
    {DType::u64, "U64", "uint64", "", "<u8"},
    {DType::boolean, "BOOL", "bool", "BoolStorage", "|b1"},
    {DType::f8e8m0, "F8_E8M0", "float8_e8m0fnu", "", "float8_e8m0fnu"},
    {DType::f8e4m3fnuz, "F8_E4M3FNUZ", "float8_e4m3fnuz", "", "float8_e4m3fnuz"},
    {DType::f8e5m2fnuz, "F8_E5M2FNUZ", "float8_e5m2fnuz", "", "float8_e5m2fnuz"},
    {DType::f6e2m3fn, "F6_E2M3", "", "", ""},
    {DType::f6e3m2fn, "F6_E3M2", "", "", ""},
    {DType::f4e2m1fn, "F4", "float4_e2m1fn_x2", "", ""},
    {DType::c64, "C64", "complex64", "ComplexFloatStorage", "<c8"},
};
static_assert(
    [] {
      for (size_t i = 0; i < std::size(kForeignNames); ++i) {
        if (kForeignNames[i].dtype != kDTypes[i].dtype) return false;
      }
      return std::size(kForeignNames) == std::size(kDTypes);
    }(),
    "the rows must be in the order of tensor/dtype.def");

constexpr const ForeignNames& ForeignNamesOf(DType dtype) {
  return kForeignNames[static_cast<int>(dtype)];
}

// Returns the type that has this name in a system, or null.
constexpr const DTypeInfo* FindDType(std::string_view ForeignNames::*system,
                                     std::string_view name) {
  for (const ForeignNames& names : kForeignNames) {
    if (names.*system == name && !name.empty()) return &InfoOf(names.dtype);
  }
  return nullptr;
}

}  // namespace shardinit
