// What is in an HDF5 file, without trusting it.
#pragma once

#include <string>

namespace shardinit::hdf5 {

// The datasets and file attributes of `path` as JSON, made by a child process
// with little memory and time, since a hostile file can make HDF5 crash or
// loop. No data is read, no link to another file is followed. Throws Error:
// kWorld if the file cannot be opened, kRefused if it is no HDF5 file, holds
// what no checkpoint of this tool holds, or ended the child.
std::string DescribeFile(const std::string& path);

}  // namespace shardinit::hdf5
