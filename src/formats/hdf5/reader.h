// What is in an HDF5 file, without trusting it.
#pragma once

#include <chrono>
#include <string>

namespace shardinit::hdf5 {

// The datasets and file attributes of `path` as JSON, made by a child process
// with little memory and `time`, since a hostile file can make HDF5 crash, loop
// or wait. The child opens nothing but this file. No data is read, no link to
// another file is followed. Throws Error: kWorld if the file cannot be opened,
// kRefused if it is no HDF5 file, holds what no checkpoint of this tool holds,
// ended the child, or has a description much longer than itself.
std::string DescribeFile(const std::string& path,
                         std::chrono::milliseconds time = std::chrono::minutes(1));

}  // namespace shardinit::hdf5
