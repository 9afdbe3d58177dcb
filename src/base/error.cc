#include "base/error.h"

#include <fmt/format.h>

#include <cstring>

#include "base/colour.h"
#include "base/text.h"

namespace shardinit {

Error SystemError(const std::string& action, const std::string& path, int error) {
  std::string hint;
  if (error == EMFILE || error == ENFILE) hint = "raise the limit on open files: `ulimit -n`";
  // Trying again does not help where nothing can be written, or not in this way.
  const bool permanent = error == EROFS || error == EOPNOTSUPP || error == ENOSYS;
  if (permanent) hint = "choose a place on another file system";
  return Error(permanent ? ExitCode::kUsage : ExitCode::kWorld,
               fmt::format("cannot {} `{}`: {}", action, path, strerror(error)), std::move(hint));
}

Error Conflict(const std::string& message) {
  return Error(ExitCode::kConflict, message, "choose another folder with `-o`");
}

std::string RenderError(const std::string& message, const std::string& hint) {
  return fmt::format("shardinit: {} {}\n", Paint(Role::kError, "error:", Channel::kTalk),
                     Escape(message)) +
         RenderHint(hint);
}

std::string RenderHint(std::string_view hint) {
  if (hint.empty()) return {};
  return fmt::format("  {} {}\n", Paint(Role::kHint, "hint:", Channel::kTalk), Escape(hint));
}

void Check(bool condition, const char* what, const char* file, int line) {
  if (condition) return;
  throw Bug(fmt::format("{}:{}: {}", file, line, what));
}

}  // namespace shardinit
