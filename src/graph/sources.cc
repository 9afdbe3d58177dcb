#include "graph/sources.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/suggest.h"
#include "base/text.h"

namespace shardinit {
namespace {

// Returns a path of the file that has it as one of the current folder.
std::string Resolved(const Located<std::string>& path) {
  return (std::filesystem::path(path.span.source->name).parent_path() / path.value).string();
}

}  // namespace

const Named<SourceSpec>* SourceTable::Declared(const std::string& name) const {
  for (const auto& source : spec_.sources) {
    if (source.name.value == name) return &source;
  }
  return nullptr;
}

SourceTensorPtr SourceTable::Find(const Located<std::string>& source, const std::string& tensor,
                                  Diagnostics& diagnostics) {
  const Named<SourceSpec>* const declared = Declared(source.value);
  if (declared == nullptr) {
    if (MayLack(spec_.sources, spec_.wrong.Has("sources"))) return nullptr;
    std::vector<std::string> names;
    for (const auto& known : spec_.sources) names.push_back(known.name.value);
    return diagnostics.Error(source.span, fmt::format("unknown source {}", Quote(source.value)),
                             names.empty() ? "declare it, as in `sources: {base: {path: ../llama}}`"
                                           : DidYouMean(source.value, names));
  }
  const auto [it, is_new] = folders_.try_emplace(source.value);
  if (is_new && declared->value.wrong.empty()) it->second = Open(*declared, diagnostics);
  const auto& folder = it->second;
  if (folder == nullptr) return nullptr;
  try {
    if (SourceTensorPtr found = folder->Find(tensor)) return found;
  } catch (const Error& error) {
    return diagnostics.Error(source.span, error.what(), error.hint());
  }
  const std::string hint = DidYouMean(tensor, folder->Names());
  diagnostics.Error(source.span,
                    fmt::format("source {} has no tensor {}", Quote(source.value), Quote(tensor)),
                    hint.empty() ? "name another with `tensor`" : hint);
  NotePlace(source.value, diagnostics);
  return nullptr;
}

void SourceTable::NotePlace(const std::string& source, Diagnostics& diagnostics) const {
  const Named<SourceSpec>* const declared = Declared(source);
  if (declared == nullptr || !declared->value.path) return;
  diagnostics.Note(declared->value.path->span,
                   fmt::format("the source is {}", Quote(Resolved(*declared->value.path))));
}

std::shared_ptr<const SourceFolder> SourceTable::Open(const Named<SourceSpec>& source,
                                                      Diagnostics& diagnostics) const {
  const auto &path = source.value.path, &digest = source.value.digest;
  if (!path) {
    return diagnostics.Error(
        source.name.span, fmt::format("source {} has no folder", Quote(source.name.value)),
        fmt::format("give its `path`, or `--source {}=DIR`", source.name.value));
  }
  if (open_ == nullptr) {
    return diagnostics.Error(path->span, "this library reads no folders of tensors",
                             "make values of the source with the program shardinit");
  }
  SourceRequest request;
  request.name = source.name.value;
  request.folder = Resolved(*path);
  if (digest) {
    Digest bytes;
    request.is_file = !FromHex(digest->value, &bytes);
    request.digest = request.is_file ? Resolved(*digest) : digest->value;
    if (request.is_file && !Exists(request.digest)) {
      return diagnostics.Error(digest->span, fmt::format("there is no file `{}`", request.digest),
                               "give 64 hexadecimal digits in lower case, or a file that "
                               "`shardinit digest DIR --write FILE` made");
    }
    request.place =
        fmt::format("{}:{}:{}", digest->span.source->name, digest->span.line, digest->span.column);
  }
  try {
    return open_(request);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage && error.code() != ExitCode::kRefused) throw;
    return diagnostics.Error(path->span, error.what(), error.hint());
  }
}

std::vector<SourcePin> SourceTable::pins() const {
  std::vector<SourcePin> pins;
  for (const auto& source : spec_.sources) {
    const auto it = folders_.find(source.name.value);
    if (it != folders_.end() && it->second != nullptr) {
      pins.push_back({source.name.value, it->second->pin()});
    }
  }
  return pins;
}

std::vector<const Named<SourceSpec>*> SourceTable::unpinned() const {
  std::vector<const Named<SourceSpec>*> unpinned;
  for (const auto& source : spec_.sources) {
    const auto it = folders_.find(source.name.value);
    if (it != folders_.end() && it->second != nullptr && it->second->pin().empty()) {
      unpinned.push_back(&source);
    }
  }
  return unpinned;
}

}  // namespace shardinit
