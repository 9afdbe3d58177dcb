#include "commands/refusals.h"

#include <fmt/format.h>

namespace shardinit {
namespace {

struct Refusal {
  std::string_view command, option, hint;
};

constexpr std::string_view kWholeCheckpoint =
    "a checkpoint has all tensors of its model: `export --only` writes some, and `digest --only` "
    "makes their values";

constexpr Refusal kRefusals[] = {
    {"gen", "--only", kWholeCheckpoint},
    {"reshard", "--only", kWholeCheckpoint},
    {"plan", "--only",
     "it shows files of whole ranks: `graph --only` shows the shapes and sizes of some tensors"},
    {"validate", "--only", "a spec is checked as a whole: `graph --only` shows some tensors"},
    {"explain", "--only", "give the pattern as PATH"},
    {"verify", "--only", "files are checked as a whole: `stats DIR --only` reads some tensors"},
};

}  // namespace

std::string HintForRefused(std::string_view command, std::string_view option) {
  // A short option may include its value, as in `-j2`.
  if (option.starts_with("-j") || option == "--jobs") {
    return fmt::format("leave it out: `{}` has no work for several threads", command);
  }
  for (const Refusal& refusal : kRefusals) {
    if (refusal.command == command && refusal.option == option) return std::string(refusal.hint);
  }
  return {};
}

}  // namespace shardinit
