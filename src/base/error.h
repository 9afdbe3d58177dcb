// Errors that are not the spec's fault: the world's, and bugs of shardinit.
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace shardinit {

// The exit code tells a shell or a job scheduler whether it helps to try again. shardinit(1)
// documents the codes.
enum class ExitCode {
  kOk = 0,         // done; no difference
  kDifferent = 1,  // difference or damage found
  kUsage = 2,      // bad usage or bad spec; a place that cannot do it, such as a read-only one
  kWorld = 3,      // disk, memory, network: a job may retry
  kConflict = 4,   // the output folder holds another plan, or is not a folder
  kRefused = 5,    // a hostile or foreign file
  kBug = 70,       // a bug in shardinit
};

// Something outside the spec failed. The message says, in words for the user, what was being done,
// to which path, and why it failed.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message, std::string hint = {})
      : std::runtime_error(message), code_(code), hint_(std::move(hint)) {}
  ExitCode code() const { return code_; }
  const std::string& hint() const { return hint_; }

 private:
  ExitCode code_;
  std::string hint_;
};

// Makes an Error such as "cannot write `path`: No space left on device", exit 3; or exit 2 where
// trying again does not help: EROFS, EOPNOTSUPP, ENOSYS, EACCES, EPERM, ELOOP and ENAMETOOLONG. A
// file in the place of a folder (ENOTDIR) is exit 4.
Error SystemError(const std::string& action, const std::string& path, int error = errno);

// Makes an Error (kConflict): something else is in the place of a folder that a user named.
Error Conflict(const std::string& message);

// Renders what is not a Diagnostic for users: `shardinit: error: …`, a hint.
std::string RenderError(const std::string& message, const std::string& hint);
// Renders a line below an error or warning; nothing for an empty hint.
std::string RenderHint(std::string_view hint);

// A bug in shardinit; the message names the place.
class Bug : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Checks an invariant that only a bug in shardinit can break.
void Check(bool condition, const char* what, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());

}  // namespace shardinit
