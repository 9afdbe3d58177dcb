// Reads what is in an HDF5 file, without trusting it.
#pragma once

#include <chrono>
#include <string>

namespace shardinit::hdf5 {

// Returns the datasets and file attributes of `path` as JSON. A child process with little memory
// and `time` makes it, since a hostile file can make HDF5 crash, loop or wait. The child opens
// nothing, reads no data and follows no link to another file. Throws Error: kWorld if the file
// cannot be read or something else killed the child, kRefused if it is no HDF5 file, holds what no
// checkpoint of this tool holds, ended the child, or has a description much longer than itself.
std::string DescribeFile(const std::string& path,
                         std::chrono::milliseconds time = std::chrono::minutes(1));

// Silences HDF5's own printing, forbids plugins and drops the environment variables that would
// change what it reads and writes. Call it once, early.
void SetUpLibrary();

}  // namespace shardinit::hdf5
