// Files that are part of the program. embed.cmake generates the functions.
#pragma once

#include <span>
#include <string_view>

namespace shardinit {

struct EmbeddedFile {
  std::string_view path;  // below its folder: `recipes/huggingface.yaml`
  std::string_view text;
};

// Returns the files of configs/, ordered by path.
std::span<const EmbeddedFile> ShippedFiles();
// Returns the files of report/templates/, ordered by path.
std::span<const EmbeddedFile> TemplateFiles();
// Returns the files of configs/jobs/, ordered by path.
std::span<const EmbeddedFile> JobFiles();
// Returns one file, the known answers of tests/vectors/.
std::span<const EmbeddedFile> AnswerFiles();
// Returns the kernels for CUDA devices, as PTX, each in a file of its name; none if this build has
// no compiler for them.
std::span<const EmbeddedFile> CudaFiles();

}  // namespace shardinit
