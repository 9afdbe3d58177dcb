// Initializes HDF5 once in a test process.
#pragma once

#include "formats/hdf5/reader.h"

namespace shardinit {

inline void SetUpHdf5Once() {
  [[maybe_unused]] static const bool once = [] {
    hdf5::SetUpLibrary();
    return true;
  }();
}

}  // namespace shardinit
