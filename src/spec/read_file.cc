#include <fmt/format.h>

#include <algorithm>

#include "base/sha256.h"
#include "base/suggest.h"
#include "base/text.h"
#include "spec/reader.h"

// Reads `{file: tables/SHA256.bin}` and `{file: {path: positions.bin, sha256: …}}`.

namespace shardinit {
namespace {

// Returns the part of a file's name that is its digest, if the file is named after its digest.
std::string_view StemOf(std::string_view path) {
  path.remove_prefix(std::min(path.rfind('/') + 1, path.size()));
  return path.substr(0, path.find('.'));
}

}  // namespace

std::optional<FileSpec> SpecReader::ReadFileSpec(const Node::Entry& entry) {
  const size_t faults = Faults();
  const Node& node = *entry.value;
  const Node *path = &node, *sha256 = nullptr;
  if (node.IsMap()) {
    NoteGaps(node);
    path = node.Find("path");
    sha256 = node.Find("sha256");
    for (const Node::Entry& item : node.entries) {
      const std::string_view name = item.key->text;
      if (name == "path" || name == "sha256") continue;
      Error(*item.key, fmt::format("`file` has no key {}", Quote(name)),
            DidYouMean(name, {"path", "sha256"}));
    }
    if (path == nullptr && Faults() == faults) {
      Error(node, "`file` needs a `path`", "write `{file: {path: positions.bin, sha256: …}}`");
    }
    if (path == nullptr) return std::nullopt;
  }
  if (!path->IsScalar() || path->text.empty()) {
    return Error(*path, fmt::format("`file` takes the path of a file, not {}", Describe(*path)),
                 "write `{file: {path: positions.bin, sha256: …}}`");
  }
  FileSpec file{Text(*path), {}};
  if (sha256 != nullptr) {
    file.sha256 = Text(*sha256);
  } else {
    file.sha256 = {std::string(StemOf(path->text)), path->span};
  }
  Digest digest;
  if (Faults() == faults && !FromHex(file.sha256.value, &digest)) {
    if (sha256 == nullptr) {
      Error(*path, fmt::format("the SHA-256 of {} is not given", Quote(path->text)),
            fmt::format("write `{{path: …, sha256: …}}` with what `sha256sum {}` prints",
                        path->text));
    } else {
      Error(*sha256,
            fmt::format("`sha256` must be 64 hexadecimal digits, a to f in lower case, not {}",
                        Describe(*sha256)),
            fmt::format("`sha256sum {}` prints them", path->text));
    }
  }
  return Faults() == faults ? std::optional(std::move(file)) : std::nullopt;
}

}  // namespace shardinit
