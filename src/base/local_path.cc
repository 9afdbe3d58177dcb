#include "base/local_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace shardinit {
namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Returns `s3` of `s3://bucket/x`, with schemes as in RFC 3986; empty if the path has none.
std::string_view SchemeOf(std::string_view path) {
  const std::string_view scheme = path.substr(0, std::min(path.find("://"), path.size()));
  if (scheme.size() == path.size() || scheme.empty() || !IsLetter(scheme[0])) return {};
  const bool is_scheme = std::all_of(scheme.begin(), scheme.end(), [](char c) {
    return IsLetter(c) || (c >= '0' && c <= '9') || c == '+' || c == '.' || c == '-';
  });
  return is_scheme ? scheme : std::string_view();
}

}  // namespace

void RequireLocal(const std::string& path) {
  const std::string_view scheme = SchemeOf(path);
  if (scheme.empty()) return;
  throw Error(
      ExitCode::kUsage,
      fmt::format("`{}` is not a path of a file system, and shardinit knows no other store", path),
      scheme == "file" ? "leave `file://` out"
                       : fmt::format("use a local folder, and copy it to or from `{}://` with that "
                                     "store's own tool",
                                     scheme));
}

}  // namespace shardinit
