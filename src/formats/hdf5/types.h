// Element types as HDF5 stores them, in both directions.
#pragma once

#include "formats/hdf5/handle.h"
#include "tensor/dtype.h"

namespace shardinit::hdf5 {

// bf16 and f16 are built field by field: HDF5 1.10 does not know them, and
// HDF5 2 recognizes the result as its own H5T_FLOAT_BFLOAT16LE, H5T_IEEE_F16LE.
Datatype TypeOf(DType dtype);

}  // namespace shardinit::hdf5
