#include "commands/folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/glob.h"
#include "base/json.h"
#include "base/talk.h"
#include "base/text.h"
#include "checkpoint/alike.h"
#include "checkpoint/source.h"
#include "export/record.h"
#include "formats/input.h"
#include "report/text.h"
#include "spec/file_kind.h"
#include "spec/names.h"

namespace shardinit {
namespace {

const Tensor* FindTensor(const Plan& plan, std::string_view path) {
  const auto found = std::find_if(plan.graph.tensors.begin(), plan.graph.tensors.end(),
                                  [&](const Tensor& tensor) { return tensor.path() == path; });
  return found == plan.graph.tensors.end() ? nullptr : &*found;
}

// Transformers keeps a head that differs from the embedding, and so unties them in silence.
void SayIfUntied(const TensorFolder& folder) {
  const Plan& plan = folder.plan();
  if (folder.is_checkpoint() || plan.graph.config.empty()) return;
  const auto config = nlohmann::json::parse(plan.graph.config, nullptr, false);
  if (!config.is_object() || config.value("tie_word_embeddings", nlohmann::json()) != true) return;
  const Tensor* const head = FindTensor(plan, "lm_head.weight");
  const Tensor* const table = FindTensor(plan, "model.embed_tokens.weight");
  if (head == nullptr || table == nullptr) return;
  if (head->shape() == table->shape() && head->dtype() == table->dtype() &&
      AreEqual(folder, *head, *table)) {
    return;
  }
  Talk(fmt::format(
      "shardinit: `{}`: config.json ties `lm_head.weight` to the embedding, but the file has one "
      "that differs; both are read as they are\n",
      Escape(folder.path())));
}

}  // namespace

bool MatchesAny(const std::vector<std::string>& patterns, const std::string& path) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return PathMatches(pattern, path); });
}

void SayFolder(const TensorFolder& folder, bool reads_values) {
  const std::string path = Escape(folder.path());
  for (const std::string& warning : folder.warnings()) {
    Talk(fmt::format("shardinit: `{}`: {}\n", path, Escape(warning)));
  }
  for (const auto& [name, why] : folder.unread()) {
    Talk(fmt::format("shardinit: `{}`: {} {}: it is not read\n", path, Quote(name), Escape(why)));
  }
  if (!folder.others().empty()) {
    std::string text;
    for (const auto& [name, size] : folder.others()) {
      text += fmt::format("{}{} of {}", text.empty() ? "" : ", ",
                          Count(size.entries, "entry", "entries"), Quote(name));
    }
    TalkUnlessQuiet(fmt::format("shardinit: `{}`: not the model, and not read: {}\n", path, text));
  }
  if (reads_values) SayIfUntied(folder);
}

void TakeRecord(TensorFolder* folder) {
  const std::string path = fmt::format("{}/{}", folder->place(), kExportName);
  std::string text;
  if (folder->is_checkpoint() || !IsInputFolder(folder->place()) ||
      !ReadInputIfExists(path, kManifestLimit, &text)) {
    return;
  }
  Record record;
  try {
    record = ReadRecord(text, path);
  } catch (const Error& e) {
    if (e.code() != ExitCode::kRefused) throw;
    return Talk(fmt::format("shardinit: {}: no bytes are compared with it\n", Escape(e.what())));
  }
  std::map<std::pair<std::string, int64_t>, const RecordedFile::Part*> parts;
  for (const RecordedFile& file : record.files) {
    const std::string at = fmt::format("{}/{}", folder->place(), file.path);
    const int64_t size = file.boxes > 0 ? InputSize(at) : file.size;
    if (size != file.size) {
      throw Error(
          ExitCode::kDifferent,
          fmt::format("`{}` is damaged: {} has {} instead of {} that were written", folder->path(),
                      Quote(file.path), Count(size, "byte"), Grouped(file.size)),
          fmt::format("`shardinit verify {}` says what else is; if it was changed on "
                      "purpose, remove its {}",
                      folder->path(), kExportName));
    }
    for (const RecordedFile::Part& part : file.parts) {
      if (!part.tensor.empty()) parts[{at, part.offset}] = &part;
    }
  }
  folder->TakeDigests([&](const FilePiece& piece, int64_t bytes) -> const Digest* {
    const auto found = parts.find({piece.file, piece.offset});
    return found == parts.end() || found->second->bytes != bytes ? nullptr : &found->second->digest;
  });
}

std::shared_ptr<const SourceFolder> OpenRecorded(const SourceRequest& request) {
  return OpenSource(request, TakeRecord);
}

void RequireNoOverrides(const SpecOptions& spec) {
  if (!spec.HasOverrides()) return;
  throw Error(ExitCode::kUsage,
              fmt::format("`{}` is a checkpoint, whose values are fixed", spec.request.path),
              kOverridesAreForSpecs);
}

std::string ClaimOf(const TensorFolder& from, const std::string& layout) {
  return fmt::format("{}\n{}\n{}", ToHex(from.IdentifyAnywhere()), layout, from.part());
}

void RequireModules(const Plan& plan) {
  std::set<std::string_view> paths;
  for (const Tensor& tensor : plan.graph.tensors) paths.insert(tensor.path());
  for (const std::string_view path : paths) {
    if (!IsPath(path)) {
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` cannot be a name in a checkpoint: names use letters, digits, "
                              "`_` and `-`, with dots between parts",
                              path),
                  "`shardinit convert` writes other formats with `--to`, and leaves one out with "
                  "`--drop`");
    }
    for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
      if (!paths.contains(path.substr(0, dot))) continue;
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` is a tensor, and `{}` would lie in it, which no checkpoint has",
                              path.substr(0, dot), path),
                  "`shardinit convert` writes other formats with `--to`, and leaves one out with "
                  "`--drop`");
    }
  }
}

void RequireAllRead(const TensorFolder& folder, const std::vector<std::string>& dropped) {
  for (const auto& [name, why] : folder.unread()) {
    if (MatchesAny(dropped, name)) continue;
    throw Error(ExitCode::kRefused,
                fmt::format("cannot copy {} of `{}`: it {}", Quote(name), folder.path(), why),
                why.ends_with(kQuantized)
                    ? "dequantize the model with the library that wrote it; without this tensor "
                      "the others would lose their meaning"
                    : "`shardinit convert` leaves it out with `--drop`");
  }
}

}  // namespace shardinit
