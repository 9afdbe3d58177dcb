#include "formats/hdf5/types.h"

namespace shardinit::hdf5 {
namespace {

hid_t StandardType(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return H5T_IEEE_F32LE;
    case DType::f64:
      return H5T_IEEE_F64LE;
    case DType::i8:
      return H5T_STD_I8LE;
    case DType::i16:
      return H5T_STD_I16LE;
    case DType::i32:
      return H5T_STD_I32LE;
    case DType::i64:
      return H5T_STD_I64LE;
    case DType::u8:
      return H5T_STD_U8LE;
    case DType::u16:
      return H5T_STD_U16LE;
    case DType::u32:
      return H5T_STD_U32LE;
    case DType::u64:
      return H5T_STD_U64LE;
    case DType::boolean:
      return H5T_STD_U8LE;
    default:
      return H5I_INVALID_HID;
  }
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
