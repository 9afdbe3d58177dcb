// Finds the files next to a model's tensors that are needed to use it, such as its tokenizer.
#pragma once

#include <map>
#include <string>

namespace shardinit {

// Returns the texts of the tokenizer, of the settings for generating, of code and of licences in a
// folder of Hugging Face, by name. Links are followed. `is_quantized` adds files that describe only
// quantized tensors. Throws Error if a file cannot be read or all are larger than 256 MiB.
std::map<std::string, std::string> ExtrasIn(const std::string& folder, bool is_quantized);

}  // namespace shardinit
