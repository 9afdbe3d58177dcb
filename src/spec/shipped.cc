#include "spec/shipped.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/embedded.h"
#include "base/error.h"
#include "base/file.h"
#include "base/suggest.h"
#include "base/text.h"

namespace shardinit {
namespace {

constexpr std::string_view kExtension = ".yaml";

// Returns the first sentence of the comment at the start of a file. Skips the line that names the
// schema for editors.
std::string TitleOf(std::string_view text) {
  std::string comment;
  while (text.starts_with('#')) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(1, end - 1);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) break;
    if (line.find("yaml-language-server") == line.npos) comment += line;
  }
  for (size_t at = 0; (at = comment.find('.', at)) != comment.npos; ++at) {
    const std::string_view rest = std::string_view(comment).substr(at + 1, 2);
    const bool is_year = rest.size() == 2 && rest[1] >= '0' && rest[1] <= '9';  // (… et al. 2019)
    if (rest.empty() || (rest[0] == ' ' && !is_year)) comment.resize(at);
  }
  return comment.empty() ? comment : comment.substr(1);
}

bool IsName(std::string_view name) {
  return !name.ends_with(kExtension) && !name.ends_with(".yml") && !name.ends_with(".json");
}

// Removes `.` from a path, and `..` if it follows a name. libstdc++'s lexically_normal() crashes
// when it runs out of memory.
std::string Normal(std::string_view path) {
  std::vector<std::string_view> names;
  for (size_t at = 0, end; at < path.size(); at = end + 1) {
    end = std::min(path.find('/', at), path.size());
    const std::string_view name = path.substr(at, end - at);
    if (name.empty() || name == ".") continue;
    if (name == ".." && !names.empty() && names.back() != "..") {
      names.pop_back();
    } else {
      names.push_back(name);
    }
  }
  return fmt::format("{}", fmt::join(names, "/"));
}

}  // namespace

std::vector<ShippedSpec> ShippedIn(std::string_view folder) {
  std::vector<ShippedSpec> specs;
  for (const EmbeddedFile& file : ShippedFiles()) {
    if (file.path.substr(0, file.path.rfind('/') + 1) != folder) continue;
    const std::string_view name = file.path.substr(0, file.path.size() - kExtension.size());
    specs.push_back({std::string(name), TitleOf(file.text)});
  }
  return specs;
}

bool IsShipped(std::string_view path) {
  return path.starts_with(kShippedFolder) && path.substr(kShippedFolder.size()).starts_with('/');
}

std::optional<std::string> FindShipped(std::string_view name) {
  for (const EmbeddedFile& file : ShippedFiles()) {
    if (file.path.ends_with(kExtension) &&
        file.path.substr(0, file.path.size() - kExtension.size()) == name) {
      return fmt::format("{}/{}", kShippedFolder, file.path);
    }
  }
  return {};
}

std::string PathOfSpec(const std::filesystem::path& folder, std::string_view name) {
  const std::filesystem::path path = IsShipped(name) ? std::filesystem::path(name) : folder / name;
  if (IsShipped(path.string())) return Normal(path.string());
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    if (!S_ISDIR(info.st_mode)) return path.string();
  } else if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENAMETOOLONG) {
    // A file that cannot be examined may exist, so do not fall back to the shipped file.
    throw SystemError("read", path.string());
  }
  return FindShipped(name).value_or(path.string());
}

std::string_view ReadShipped(const std::string& path) {
  std::vector<std::string> paths;
  for (const EmbeddedFile& file : ShippedFiles()) {
    paths.push_back(fmt::format("{}/{}", kShippedFolder, file.path));
    if (paths.back() == path) return file.text;
  }
  throw Usage(fmt::format("shardinit has no file {}", Quote(path)), DidYouMean(path, paths));
}

std::string HintForSpec(const std::string& name) {
  if (!IsName(name)) return {};
  // Names on Hugging Face's Hub have this form: `meta-llama/Llama-3.1-8B`.
  const size_t slash = name.find('/');
  if (slash != name.npos && slash > 0 && slash == name.rfind('/') && slash + 1 < name.size() &&
      name[0] != '.' && !Exists(name.substr(0, slash))) {
    return "shardinit does not download from Hugging Face's Hub: download the model's config.json, "
           "and name that file";
  }
  std::vector<std::string> names;
  for (ShippedSpec& spec : ShippedIn("")) names.push_back(std::move(spec.name));
  return Closest(name, names).empty() ? "`shardinit list models` shows the specs that are shipped"
                                      : DidYouMean(name, names);
}

}  // namespace shardinit
