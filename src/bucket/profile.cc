#include "bucket/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace shardinit {
namespace {

constexpr std::string_view kSpaces = " \t\v\f";

using Sections = std::vector<std::pair<std::string, ProfileKeys>>;

// Removes a line and its newline, `\n`, `\r\n` or `\r`, from `text`. Returns the line.
std::string_view TakeLine(std::string_view* text) {
  const size_t end = std::min(text->find_first_of("\r\n"), text->size());
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(
      std::min(end + (text->substr(end).starts_with("\r\n") ? 2 : 1), text->size()));
  return line;
}

// Reads sections as Python's configparser and botocore do, and rejects ambiguous files. A line that
// is indented more than its key continues the value. Lines below a key without a value are keys of
// a group.
Sections ReadSections(const std::string& path) {
  std::string file;
  if (!ReadFileIfExists(path, size_t{1} << 20, &file)) return {};
  size_t number = 0;
  const auto refuse = [&](const std::string& why) {
    return Error(ExitCode::kUsage, fmt::format("`{}:{}` {}", path, number, why),
                 "correct this file of AWS's tools, or name another one in AWS_CONFIG_FILE or "
                 "AWS_SHARED_CREDENTIALS_FILE");
  };
  Sections sections;
  ProfileKeys shared;  // keys of [DEFAULT], which every section has
  ProfileKeys* section = nullptr;
  std::string *value = nullptr, group;
  size_t indent = 0;
  for (std::string_view text = file; !text.empty();) {
    ++number;
    const std::string_view whole = TakeLine(&text), line = Trimmed(whole);
    if (line.empty() || line.starts_with('#') || line.starts_with(';')) continue;
    const size_t begin = whole.find_first_not_of(kSpaces);
    const bool is_continued = value != nullptr && begin > indent;
    const size_t delimiter = line.find_first_of(is_continued ? "=" : "=:");
    if (is_continued && !value->empty()) {
      *value += fmt::format("\n{}", line);
      continue;
    }
    if (!is_continued) indent = begin;
    if (const size_t close = line.rfind(']');
        !is_continued && line.starts_with('[') && close > 1 && close != line.npos) {
      const std::string name(line.substr(1, close - 1));
      const auto is_same = [&](const auto& other) { return other.first == name; };
      if (std::any_of(sections.begin(), sections.end(), is_same)) {
        throw refuse(fmt::format("begins the section {} again", Quote(name)));
      }
      value = nullptr;
      section = name == "DEFAULT" ? &shared : &sections.emplace_back(name, ProfileKeys()).second;
      continue;
    }
    if (section == nullptr) throw refuse("is before the first section");
    const std::string_view key = Trimmed(line.substr(0, delimiter));
    if (delimiter == line.npos || key.empty()) throw refuse("has no `KEY = VALUE`");
    if (is_continued) {
      // The lines of a group need not have equal indents.
      (*section)[fmt::format("{}.{}", group, key)] = Trimmed(line.substr(delimiter + 1));
      continue;
    }
    group = Lower(key);
    const auto [added, is_new] = section->emplace(group, Trimmed(line.substr(delimiter + 1)));
    if (!is_new) throw refuse(fmt::format("has the key {} again", Quote(key)));
    value = &added->second;
  }
  for (auto& [name, keys] : sections) keys.insert(shared.begin(), shared.end());
  return sections;
}

// Splits a section's name at spaces outside quotes. Returns nothing if a quote is not closed.
std::optional<std::vector<std::string>> WordsOf(std::string_view name) {
  std::vector<std::string> words;
  char quote = '\0';
  bool is_in_word = false;
  for (const char c : name) {
    const bool is_space = quote == '\0' && kSpaces.find(c) != kSpaces.npos;
    if (!is_space && !is_in_word) words.emplace_back();
    is_in_word = !is_space;
    if (is_space) continue;
    if (c == quote) {
      quote = '\0';
    } else if (quote == '\0' && (c == '"' || c == '\'')) {
      quote = c;
    } else {
      words.back() += c;
    }
  }
  if (quote != '\0') return {};
  return words;
}

// Returns the last section of `config` with this kind, such as `profile`, and name.
std::optional<ProfileKeys> FindNamed(const Sections& sections, std::string_view kind,
                                     const std::string& name) {
  std::optional<ProfileKeys> found;
  for (const auto& [header, keys] : sections) {
    const auto words = WordsOf(header);
    const bool is_named =
        words && words->size() == 2 && header.starts_with(kind) && words->at(1) == name;
    if (is_named || (kind == "profile" && header == "default" && name == header)) found = keys;
  }
  return found;
}

// Returns the path in a variable, or of a file in the home folder.
std::string PathOf(const char* variable, const char* file) {
  return ExpandedPath(FirstOf({Environment(variable), fmt::format("~/.aws/{}", file)}));
}

}  // namespace

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string FirstOf(std::initializer_list<std::string> values) {
  for (const std::string& value : values) {
    if (!value.empty()) return value;
  }
  return {};
}

std::string ExpandedPath(const std::string& given) {
  std::string path;
  for (size_t i = 0; i < given.size(); ++i) {
    if (i == 0 && given.starts_with("~/")) {
      path += Environment("HOME");
    } else if (given[i] == '$') {
      constexpr std::string_view kInName =
          "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
      const bool is_braced = given.substr(i + 1).starts_with('{');
      const size_t begin = i + (is_braced ? 2 : 1);
      const size_t end = is_braced
                             ? given.find('}', begin)
                             : std::min(given.find_first_not_of(kInName, begin), given.size());
      const std::string name = end == given.npos ? "" : given.substr(begin, end - begin);
      const char* const value = std::getenv(name.c_str());
      if (value == nullptr) {
        path += given[i];
        continue;
      }
      path += value;
      i = end - (is_braced ? 0 : 1);
    } else {
      path += given[i];
    }
  }
  return path;
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\v\f\r\n"), text.size());
  return text.substr(begin, text.find_last_not_of(" \t\v\f\r\n") + 1 - begin);
}

bool IsTrue(std::string_view setting) { return Lower(setting) == "true"; }

std::string Profile::Get(const std::string& key) const {
  const auto found = all.find(key);
  return found == all.end() ? std::string() : found->second;
}

std::string Profile::EndpointOf(const std::string& service) const {
  if (IsTrue(FirstOf({Environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"),
                      Get("ignore_configured_endpoint_urls")}))) {
    return {};
  }
  std::string variable = "AWS_ENDPOINT_URL_";
  for (const char c : service) variable += c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  const std::string set = FirstOf({Environment(variable.c_str()), Environment("AWS_ENDPOINT_URL")});
  if (!set.empty()) return set;
  if (all.contains("services") && services.empty()) {
    throw Error(
        ExitCode::kUsage,
        fmt::format(
            "the profile names the services {}, but the config file has no section `[services {}]`",
            Quote(Get("services")), Escape(Get("services"))),
        "add the section, or remove `services` from the profile");
  }
  const auto found = services.find(service + ".endpoint_url");
  return FirstOf({found == services.end() ? "" : found->second, Get("endpoint_url")});
}

Profile ReadProfile() {
  // The order is botocore's.
  const char* const variable =
      Environment("AWS_DEFAULT_PROFILE").empty() ? "AWS_PROFILE" : "AWS_DEFAULT_PROFILE";
  const std::string named = Environment(variable), name = FirstOf({named, "default"});
  Profile profile;
  const Sections credentials = ReadSections(PathOf("AWS_SHARED_CREDENTIALS_FILE", "credentials"));
  const Sections config = ReadSections(PathOf("AWS_CONFIG_FILE", "config"));
  const auto of_credentials =
      std::find_if(credentials.begin(), credentials.end(),
                   [&](const auto& section) { return section.first == name; });
  const std::optional<ProfileKeys> of_config = FindNamed(config, "profile", name);
  if (of_credentials != credentials.end()) profile.of_credentials = of_credentials->second;
  if (of_config) profile.of_config = *of_config;
  if (!named.empty() && of_credentials == credentials.end() && !of_config) {
    throw Error(ExitCode::kUsage,
                fmt::format("{} is {}, and neither ~/.aws/credentials nor ~/.aws/config has such a "
                            "profile",
                            variable, Quote(name)));
  }
  profile.all = profile.of_credentials;
  profile.all.insert(profile.of_config.begin(), profile.of_config.end());
  profile.services = FindNamed(config, "services", profile.Get("services")).value_or(ProfileKeys());
  return profile;
}

}  // namespace shardinit
