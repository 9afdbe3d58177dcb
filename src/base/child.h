// Runs a program that the user names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

struct ChildResult {
  int status;          // the exit status, or 128 + the signal that ended the program
  std::string output;  // standard output and error
};

// Runs a program from PATH, without a shell. `words` are its name and arguments, and `input` is its
// standard input. Throws Error: kUsage with `hint` if the program does not exist, else kWorld.
ChildResult RunChild(const std::vector<std::string>& words, std::string_view input,
                     const std::string& hint);

}  // namespace shardinit
