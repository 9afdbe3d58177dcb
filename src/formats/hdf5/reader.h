// Lists the contents of untrusted HDF5 files.
#pragma once

#include <chrono>
#include <string>

namespace shardinit::hdf5 {

// Returns the datasets and file attributes of `path` as JSON. A child process with little memory
// and `time` reads the file, because a hostile file can make HDF5 crash, loop or wait. The child
// opens nothing, reads no data and follows no link to another file.
//
// Throws Error (kWorld) if the file cannot be read or something else killed the child. Throws Error
// (kRefused) if the file is not HDF5, has content that no checkpoint of this tool has, ended the
// child, or has a description much longer than itself.
std::string DescribeFile(const std::string& path,
                         std::chrono::milliseconds time = std::chrono::minutes(1));

// Silences HDF5, forbids plugins, and unsets environment variables that change what HDF5 reads and
// writes. Call it once, early.
void SetUpLibrary();

}  // namespace shardinit::hdf5
