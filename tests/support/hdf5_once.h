// Sets HDF5 up once in a process of tests.
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
