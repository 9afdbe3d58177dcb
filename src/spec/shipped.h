// The files of configs/ are part of the program, so a spec that includes them works wherever
// shardinit does.
#pragma once

#include <span>
#include <string_view>

namespace shardinit {

struct ShippedFile {
  std::string_view path;  // below configs/: `recipes/huggingface.yaml`
  std::string_view text;
};

// Returns the files, ordered by path. embed.cmake generates this function.
std::span<const ShippedFile> ShippedFiles();

// The prefix of their paths in specs and messages: `<shardinit>/recipes/huggingface.yaml`.
inline constexpr std::string_view kShippedFolder = "<shardinit>";

}  // namespace shardinit
