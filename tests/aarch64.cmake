# A toolchain file: Debian's cross compiler, with the libraries that tests/run.sh unpacked in
# build/arm64.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
get_filename_component(CMAKE_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build/arm64 ABSOLUTE)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# CMake would ask the h5cc of this machine.
set(HDF5_C_COMPILER_EXECUTABLE FALSE CACHE BOOL "")
set(HDF5_C_INCLUDE_DIR ${CMAKE_SYSROOT}/usr/include/hdf5/serial CACHE PATH "")
set(HDF5_hdf5_LIBRARY_RELEASE
    ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/libhdf5_serial.so CACHE FILEPATH "")
