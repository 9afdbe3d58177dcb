// The two failures that are not the spec's fault: the world's, and ours.
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>

namespace shardinit {

// What a shell or a job scheduler is told: whether it helps to try again. Documented in
// shardinit(1).
enum class ExitCode {
  kOk = 0,         // Done; no difference.
  kDifferent = 1,  // Difference or damage found.
  kUsage = 2,      // Bad usage or bad spec; a place that cannot do it, as one that is read-only.
  kWorld = 3,      // Disk, memory, permissions: a job may retry.
  kConflict = 4,   // The output folder holds another plan.
  kRefused = 5,    // A hostile or foreign file.
  kBug = 70,       // A bug in shardinit.
};

// Something outside the spec failed: what was being done, to which path, and
// why, in words for the user.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string message, std::string hint = {})
      : std::runtime_error(std::move(message)), code_(code), hint_(std::move(hint)) {}
  ExitCode code() const { return code_; }
  const std::string& hint() const { return hint_; }

 private:
  ExitCode code_;
  std::string hint_;
};

// "cannot write `path`: No space left on device", exit 3; or 2, where the file system never can: it
// is read-only (EROFS) or has no such operation (EOPNOTSUPP, ENOSYS).
Error SystemError(const std::string& action, const std::string& path, int error = errno);

// As a user sees what is not a Diagnostic: `shardinit: error: …`, a hint.
std::string RenderError(const std::string& message, const std::string& hint);

// A bug of ours; the message names the place.
class Bug : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// An invariant that only a bug of ours can break.
void Check(bool condition, const char* what, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());

}  // namespace shardinit
