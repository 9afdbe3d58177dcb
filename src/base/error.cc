#include "base/error.h"

#include <fmt/format.h>

#include "base/colour.h"
#include "base/text.h"

namespace shardinit {

Error SystemError(const std::string& action, const std::string& path, int error) {
  std::string hint;
  if (error == EMFILE || error == ENFILE) hint = "raise the limit on open files: `ulimit -n`";
  // A retry cannot help in these cases.
  ExitCode code = ExitCode::kUsage;
  switch (error) {
    case EROFS:
    case EOPNOTSUPP:
    case ENOSYS:
      hint = "choose a place on another file system";
      break;
    case EACCES:
    case EPERM:
      hint = "choose another place, or have its permissions changed";
      break;
    case ELOOP:
      hint = "choose another place: a link of this path leads back to itself";
      break;
    case ENAMETOOLONG:
      hint = "choose a shorter name";
      break;
    case ENOTDIR:
      code = ExitCode::kConflict;
      hint = "choose another place: a part of this path is a file";
      break;
    default:
      code = ExitCode::kWorld;
  }
  return Error(code, fmt::format("cannot {} `{}`: {}", action, path, strerror(error)),
               std::move(hint));
}

Error Usage(const std::string& message, std::string hint) {
  return Error(ExitCode::kUsage, message, std::move(hint));
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
