#include "formats/hdf5/types.h"

namespace shardinit::hdf5 {
namespace {

hid_t StandardType(DType dtype) {
  // HDF5's names are variables, which have their values once it has started.
  const std::pair<DType, hid_t> types[] = {
      {DType::f32, H5T_IEEE_F32LE}, {DType::f64, H5T_IEEE_F64LE},   {DType::i8, H5T_STD_I8LE},
      {DType::i16, H5T_STD_I16LE},  {DType::i32, H5T_STD_I32LE},    {DType::i64, H5T_STD_I64LE},
      {DType::u8, H5T_STD_U8LE},    {DType::u16, H5T_STD_U16LE},    {DType::u32, H5T_STD_U32LE},
      {DType::u64, H5T_STD_U64LE},  {DType::boolean, H5T_STD_U8LE},
  };
  for (const auto& [known, type] : types) {
    if (known == dtype) return type;
  }
  return H5I_INVALID_HID;
}

}  // namespace

Datatype TypeOf(DType dtype) {
  if (const hid_t standard = StandardType(dtype); standard >= 0) {
    return {H5Tcopy(standard), "copy a type"};
  }
  const DTypeInfo& info = InfoOf(dtype);
  const size_t bits = 8 * static_cast<size_t>(info.bytes);
  const size_t mantissa = static_cast<size_t>(info.mantissa_bits);
  const size_t exponent = static_cast<size_t>(info.exponent_bits);
  Datatype type(H5Tcopy(H5T_IEEE_F32LE), "copy a type");
  Require(H5Tset_fields(type, bits - 1, mantissa, exponent, 0, mantissa), "set a type's fields");
  Require(H5Tset_precision(type, bits), "set a type's precision");
  Require(H5Tset_size(type, bits / 8), "set a type's size");
  Require(H5Tset_ebias(type, (size_t{1} << (exponent - 1)) - 1), "set a type's exponent bias");
  return type;
}

}  // namespace shardinit::hdf5
