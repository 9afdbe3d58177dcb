// Runs a program of the user's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

struct ChildResult {
  int status;          // the exit status; of one that a signal ended, 128 and the signal
  std::string output;  // what it wrote, to standard output and error
};

// Runs a program of PATH, without a shell, with `input` as its standard input. `words` are its name
// and arguments. Throws Error: kUsage, with `hint`, if there is no such program, else kWorld.
ChildResult RunChild(const std::vector<std::string>& words, std::string_view input,
                     const std::string& hint);

}  // namespace shardinit
