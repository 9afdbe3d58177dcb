// The files of configs/, which are part of the program, and the names that specs and options know
// them by.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// The prefix of the paths of these files in specs and messages:
// `<shardinit>/recipes/huggingface.yaml`. A spec that names them works wherever shardinit does.
inline constexpr std::string_view kShippedFolder = "<shardinit>";

// The folder of the shardings that `--sharding` knows by name.
inline constexpr std::string_view kShippedShardings = "sharding/";

// The folder of the files with layouts.
inline constexpr std::string_view kShippedLayouts = "layouts/";

struct ShippedSpec {
  std::string name;   // the path below configs/ without extension: `llama3.1-8b`, `sharding/t5x`
  std::string title;  // the first sentence of its comment
};

// Returns the files directly in a folder of configs/, which is empty or ends with a slash.
std::vector<ShippedSpec> ShippedIn(std::string_view folder);

bool IsShipped(std::string_view path);

// Returns the path of the shipped file of that name: `<shardinit>/sharding/t5x.yaml`.
std::optional<std::string> FindShipped(std::string_view name);

// Returns the path of the file that `name` means in a file of `folder`, or, where that is empty, on
// the command line: a file or, if there is none, what is shipped under that name.
std::string PathOfSpec(const std::filesystem::path& folder, std::string_view name);

// Returns the text of a shipped file. Throws Error (kUsage) if there is none.
std::string_view ReadShipped(const std::string& path);

// Returns a hint for a name that neither a file nor a shipped spec has, or an empty text.
std::string HintForSpec(const std::string& name);

}  // namespace shardinit
