// Looks up the files of configs/, which are compiled into the program, by the names that specs and
// options use.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// The prefix of the paths of these files in specs and messages:
// `<shardinit>/recipes/huggingface.yaml`. A spec that names such a file works wherever shardinit
// does.
inline constexpr std::string_view kShippedFolder = "<shardinit>";

// The folder of the shardings that `--sharding` finds by name.
inline constexpr std::string_view kShippedShardings = "sharding/";

// The folder of the files with layouts.
inline constexpr std::string_view kShippedLayouts = "layouts/";

struct ShippedSpec {
  std::string name;   // the path below configs/ without extension: `llama3.1-8b`, `sharding/t5x`
  std::string title;  // the first sentence of the file's comment
};

// Returns the files directly in a folder of configs/. `folder` is empty or ends with a slash.
std::vector<ShippedSpec> ShippedIn(std::string_view folder);

bool IsShipped(std::string_view path);

// Returns the path of the shipped file with this name: `<shardinit>/sharding/t5x.yaml`.
std::optional<std::string> FindShipped(std::string_view name);

// Resolves `name` in a file of `folder`, or on the command line if `folder` is empty. Returns the
// path of a file or, if no such file exists, of the shipped file with this name.
std::string PathOfSpec(const std::filesystem::path& folder, std::string_view name);

// Returns the text of a shipped file. Throws Error (kUsage) if it does not exist.
std::string_view ReadShipped(const std::string& path);

// Returns a hint for a name that matches neither a file nor a shipped spec, or an empty string.
std::string HintForSpec(const std::string& name);

}  // namespace shardinit
