// Returns files that are embedded in the program; embed.cmake generates the functions.
#pragma once

#include <span>
#include <string_view>

namespace shardinit {

struct EmbeddedFile {
  std::string_view path;  // relative to the embedded folder: `recipes/huggingface.yaml`
  std::string_view text;
};

// Returns the files of configs/, sorted by path.
std::span<const EmbeddedFile> ShippedFiles();
// Returns the files of report/templates/, sorted by path.
std::span<const EmbeddedFile> TemplateFiles();
// Returns the files of configs/jobs/, sorted by path.
std::span<const EmbeddedFile> JobFiles();
// Returns one file with the known answers of tests/vectors/.
std::span<const EmbeddedFile> AnswerFiles();
// Returns the kernels for CUDA devices, each in a PTX file of its name; none if this build has no
// compiler for them.
std::span<const EmbeddedFile> CudaFiles();

}  // namespace shardinit
