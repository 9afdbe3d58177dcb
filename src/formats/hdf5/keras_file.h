// Lays out an HDF5 file as h5py writes NumPy arrays, and as Keras reads them.
#pragma once

#include <string>
#include <vector>

#include "formats/format.h"

namespace shardinit::hdf5 {

using DatasetNames = std::string (*)(const Tensor& tensor);  // `/layers/dense/vars/0`

// Lays out a file with a dataset for each of these boxes. Its head has all that HDF5 writes. The
// same boxes give the same bytes on every machine and HDF5 version.
FileLayout LayOutKerasFile(std::string path, std::vector<FileBox> boxes, DatasetNames names);

}  // namespace shardinit::hdf5
