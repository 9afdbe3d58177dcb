// Sets HDF5 up as a quiet, closed library.
#pragma once

namespace shardinit::hdf5 {

// Silences HDF5's own printing, forbids plugins and drops the environment variables that would
// change what it reads and writes. Call it once, early.
void SetUpLibrary();

}  // namespace shardinit::hdf5
