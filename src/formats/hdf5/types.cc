#include "formats/hdf5/types.h"

namespace shardinit::hdf5 {

Datatype TypeOf(DType dtype) {
  if (dtype == DType::f32) return {H5Tcopy(H5T_IEEE_F32LE), "copy a type"};
  if (dtype == DType::f64) return {H5Tcopy(H5T_IEEE_F64LE), "copy a type"};
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
