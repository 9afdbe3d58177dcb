// Gives the HDF5 type of each element type.
#pragma once

#include "formats/hdf5/handle.h"
#include "tensor/dtype.h"

namespace shardinit::hdf5 {

// Builds floats of less than 32 bits field by field: HDF5 1.10 does not know them, and HDF5 2
// recognizes the results as its own H5T_FLOAT_BFLOAT16LE, H5T_IEEE_F16LE, H5T_FLOAT_F8E4M3 and
// H5T_FLOAT_F8E5M2. A bool is a uint8.
Datatype TypeOf(DType dtype);

}  // namespace shardinit::hdf5
