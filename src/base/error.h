// Defines errors other than mistakes in a spec: failures of the system, and bugs of shardinit.
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace shardinit {

// The exit code tells a shell or a job scheduler whether to retry. shardinit(1) documents the
// codes.
enum class ExitCode {
  kOk = 0,         // done; no difference
  kDifferent = 1,  // found a difference or damage
  kUsage = 2,      // bad usage or spec, or a place that cannot do it, such as a read-only one
  kWorld = 3,      // disk, memory or network failed: a job may retry
  kConflict = 4,   // the output folder contains another plan, or is not a folder
  kRefused = 5,    // a hostile or foreign file
  kBug = 70,       // a bug in shardinit
};

// A failure outside the spec. The message names the action, the path and the reason, in words for
// users.
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

// Returns an Error such as "cannot write `path`: No space left on device", with exit code 3. The
// code is 2 where a retry cannot help: EROFS, EOPNOTSUPP, ENOSYS, EACCES, EPERM, ELOOP and
// ENAMETOOLONG. It is 4 for ENOTDIR: a file where a folder should be.
Error SystemError(const std::string& action, const std::string& path, int error = errno);

// Returns an Error (kUsage): the command line or the spec must change first.
Error Usage(const std::string& message, std::string hint = {});

// Returns an Error (kConflict): something else has the name of a folder that the user chose.
Error Conflict(const std::string& message);

// Renders an error without a Diagnostic: `shardinit: error: …` and a hint.
std::string RenderError(const std::string& message, const std::string& hint);
// Renders the hint below an error or warning; nothing if `hint` is empty.
std::string RenderHint(std::string_view hint);

// A bug in shardinit. The message names the place.
class Bug : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws Bug unless `condition`, an invariant that only a bug can break, is true.
void Check(bool condition, const char* what, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());

}  // namespace shardinit
