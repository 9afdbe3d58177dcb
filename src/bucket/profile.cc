#include "bucket/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace shardinit {
namespace {

std::string_view Trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Adds the keys of the profile in `text`, and those in groups below them such as `s3 =`. Returns
// whether the profile is there.
bool AddProfile(std::string_view text, std::string_view profile,
                std::map<std::string, std::string>* keys) {
  bool is_there = false, is_in = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    // A comment may stand behind the name.
    if (const size_t close = line.find(']'); line.starts_with('[') && close != line.npos) {
      std::string_view name = Trimmed(line.substr(1, close - 1));
      if (name.starts_with("profile ")) name = Trimmed(name.substr(8));
      is_in = name == profile;
      is_there = is_there || is_in;
    }
    const size_t equal = line.find('=');
    if (!is_in || line.starts_with('#') || line.starts_with(';') || equal == line.npos) continue;
    keys->emplace(Trimmed(line.substr(0, equal)), Trimmed(line.substr(equal + 1)));
  }
  return is_there;
}

}  // namespace

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::map<std::string, std::string> ReadProfile() {
  std::string profile = Environment("AWS_PROFILE");
  const bool is_named = !profile.empty();
  if (!is_named) profile = "default";
  std::map<std::string, std::string> keys;
  bool is_there = false;
  for (const auto& [variable, file] :
       {std::pair("AWS_SHARED_CREDENTIALS_FILE", "credentials"), {"AWS_CONFIG_FILE", "config"}}) {
    std::string path = Environment(variable), text;
    if (path.empty()) path = fmt::format("{}/.aws/{}", Environment("HOME"), file);
    if (ReadFileIfExists(path, size_t{1} << 20, &text)) {
      is_there = AddProfile(text, profile, &keys) || is_there;
    }
  }
  if (is_named && !is_there) {
    throw Error(ExitCode::kUsage,
                fmt::format("AWS_PROFILE is {}, and neither ~/.aws/credentials nor ~/.aws/config "
                            "has such a profile",
                            Quote(profile)));
  }
  return keys;
}

}  // namespace shardinit
