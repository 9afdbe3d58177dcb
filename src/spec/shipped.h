// The files of configs/, which are part of the program: a spec that includes them works wherever
// shardinit does.
#pragma once

#include <span>
#include <string_view>

namespace shardinit {

struct ShippedFile {
  std::string_view path;  // Below configs/: `recipes/huggingface.yaml`.
  std::string_view text;
};

// By path. Made by embed.cmake.
std::span<const ShippedFile> ShippedFiles();

// How their paths begin in specs and messages: `<shardinit>/recipes/huggingface.yaml`.
inline constexpr std::string_view kShippedFolder = "<shardinit>";

}  // namespace shardinit
