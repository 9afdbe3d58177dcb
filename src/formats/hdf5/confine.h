// Restricts a process to the system calls that reading a file needs.
#pragma once

namespace shardinit::hdf5 {

// Makes the kernel refuse this process all calls except to read open descriptors, write to `out`,
// allocate memory that is not executable, and exit. A bug that a hostile file triggers then cannot
// start programs, open files, use the network, change names or send signals. Has no effect without
// the kernel's seccomp filters.
void Confine(int out);

}  // namespace shardinit::hdf5
