#include "formats/extras.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/glob.h"
#include "formats/input.h"

namespace shardinit {
namespace {

constexpr size_t kLimit = size_t{256} << 20;

// What `save_pretrained` of Transformers' tokenizers, processors and configurations writes, code
// for `trust_remote_code`, and the model's licence.
constexpr std::string_view kPatterns[] = {
    "*.jinja",
    "*.model",
    "*.py",
    "*.spm",
    "*.tiktoken",
    "LICEN[CS]E*",
    "NOTICE*",
    "added_tokens.json",
    "additional_chat_templates/*.jinja",
    "chat_template*.json",
    "generation_config.json",
    "image_processor_config.json",
    "merges.txt",
    "normalizer.json",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer*.json",
    "video_preprocessor_config.json",
    "vocab*.json",
    "vocab*.txt",
};
constexpr std::string_view kOfQuantized[] = {
    "hf_quant_config.json",
    "quant_config.json",
    "quantize_config.json",
};

}  // namespace

std::map<std::string, std::string> ExtrasIn(const std::string& folder, bool is_quantized) {
  const auto matches = [](const std::string& name) {
    return [&name](std::string_view pattern) { return Matches(pattern, name, Stars::kRuns); };
  };
  std::map<std::string, std::string> extras;
  size_t bytes = 0;
  WalkInput(folder, [&](const std::string& name, NameKind kind) {
    if (kind == NameKind::kFolder) return name == "additional_chat_templates";
    const auto is = matches(name);
    if (std::ranges::any_of(kPatterns, is) ||
        (is_quantized && std::ranges::any_of(kOfQuantized, is))) {
      std::string text = ReadInput(fmt::format("{}/{}", folder, name), kLimit);
      bytes += text.size();
      if (bytes > kLimit) {
        throw Error(ExitCode::kUsage,
                    fmt::format("the tokenizer and other extra files of `{}` must be at most 256 "
                                "MiB together, but are larger",
                                folder),
                    "leave them out, with `--no-extras`");
      }
      extras.emplace(name, std::move(text));
    }
    return false;
  });
  return extras;
}

}  // namespace shardinit
