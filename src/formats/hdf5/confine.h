// Takes from a process what a reader of a file does not need.
#pragma once

namespace shardinit::hdf5 {

// From here on the kernel refuses this process every call but those that read open descriptors,
// write to `out`, take memory that no code can be run from, and end the process. So a bug that a
// hostile file reaches can start no program, open no file, reach no network, change no name and
// signal nobody. A kernel without seccomp filters changes nothing.
void Confine(int out);

}  // namespace shardinit::hdf5
