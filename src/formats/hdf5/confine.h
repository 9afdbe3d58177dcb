// Takes from a process what a reader of a file does not need.
#pragma once

namespace shardinit::hdf5 {

// What the process may still open: files to read, or nothing.
enum class MayOpen { kToRead, kNothing };

// From here on the kernel refuses this process every call but those that read open descriptors,
// write to `out`, take memory that no code can be run from, and end the process. So a bug that a
// hostile file reaches can start no program, reach no network, change no name and signal nobody.
// A second call can only take more. A kernel without seccomp filters changes nothing.
void Confine(MayOpen may_open, int out);

}  // namespace shardinit::hdf5
