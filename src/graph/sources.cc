#include "graph/sources.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/glob.h"
#include "base/suggest.h"
#include "base/text.h"
#include "bucket/url.h"
#include "expr/functions.h"
#include "report/text.h"

namespace shardinit {
namespace {

constexpr int64_t kLargestExtent = std::numeric_limits<int64_t>::max();

// Turns a path relative to its spec file into one relative to the current folder.
std::string Resolved(const Located<std::string>& path) {
  return (std::filesystem::path(path.span.source->name).parent_path() / path.value).string();
}

// Returns where the tensors of a source are: a path relative to the current folder, or a URL.
std::string PlaceOfSource(const Located<std::string>& path) {
  return IsUrl(path.value) ? path.value : Resolved(path);
}

// Returns a hint for a mismatched shape or number: the variables that the spec's value depends on.
std::string HintFor(const std::vector<ExprPtr>& expressions, const SpecScope& names) {
  std::set<std::string> used;
  for (const ExprPtr& expr : expressions) {
    for (std::string& name : NamesIn(*expr)) used.insert(std::move(name));
  }
  std::vector<std::string> values;
  for (const std::string& name : used) {
    Diagnostics heard_before;
    if (const auto number = names.Find(name, heard_before)) {
      values.push_back(fmt::format("`{}` is {}", name, FormatValue(*number)));
    }
  }
  if (values.empty()) return "name the folder of another model";
  return fmt::format("{}: set these to the model's values, or name another folder",
                     fmt::join(values, " and "));
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
  if (is_new && declared->value.wrong.empty()) {
    it->second = Open(*declared, diagnostics);
    if (it->second != nullptr && !HasAll(*declared, *it->second, diagnostics)) it->second = nullptr;
  }
  const auto& folder = it->second;
  if (folder == nullptr) return nullptr;
  try {
    if (SourceTensorPtr found = folder->Find(tensor)) return found;
  } catch (const Error& error) {
    if (error.code() == ExitCode::kWorld) throw;
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
                   fmt::format("the source is {}", Quote(PlaceOfSource(*declared->value.path))));
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
  request.folder = PlaceOfSource(*path);
  if (source.value.part) request.part = source.value.part->value;
  request.widens = source.value.quantized && source.value.quantized->value == "widened";
  if (source.value.layout) request.layout = source.value.layout->value;
  if (source.value.spec) {
    request.spec = Resolved(*source.value.spec);
    // Otherwise it is the name of a built-in spec.
    if (!Exists(request.spec)) request.spec = source.value.spec->value;
  }
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
    if (!IsUrl(path->value)) RequireLocal(path->value);
    std::shared_ptr<const SourceFolder> folder = open_(request);
    if (const std::string warning = folder->warning(); !warning.empty()) {
      diagnostics.Warning(path->span, Escape(warning), "");
    }
    return folder;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage && error.code() != ExitCode::kRefused) throw;
    return diagnostics.Error(path->span, error.what(), error.hint());
  }
}

bool SourceTable::HasAll(const Named<SourceSpec>& source, const SourceFolder& folder,
                         Diagnostics& diagnostics) const {
  const size_t before = diagnostics.errors();
  for (const MustHaveSpec& wanted : source.value.must_have) {
    if (!wanted.wrong.empty() || !wanted.tensor) continue;
    if (!Has(source, wanted, folder, diagnostics)) NotePlace(source.name.value, diagnostics);
  }
  return diagnostics.errors() == before;
}

bool SourceTable::Has(const Named<SourceSpec>& source, const MustHaveSpec& wanted,
                      const SourceFolder& folder, Diagnostics& diagnostics) const {
  const std::string& pattern = wanted.tensor->value;
  std::optional<Shape> shape;
  if (wanted.shape) {
    shape.emplace();
    for (const ExprPtr& expr : wanted.shape->value) {
      const auto extent = expr == nullptr ? std::nullopt
                                          : EvaluateInteger(*expr, names_, 0, kLargestExtent,
                                                            "a dimension", diagnostics);
      if (!extent) return true;
      shape->push_back(*extent);
    }
  }
  int64_t found = 0;
  for (const std::string& name : folder.Names()) {
    if (!PathMatches(pattern, name)) continue;
    ++found;
    if (!shape) continue;
    SourceTensorPtr tensor;
    try {
      tensor = folder.Find(name);
    } catch (const Error& error) {
      if (error.code() == ExitCode::kWorld) throw;
      diagnostics.Error(wanted.tensor->span, error.what(), error.hint());
      return false;
    }
    const Shape numbers = InNumbers(tensor->shape(), tensor->dtype());
    if (numbers == *shape) continue;
    diagnostics.Error(wanted.shape->span,
                      fmt::format("source {} has {} as [{}], not [{}]", Quote(source.name.value),
                                  Quote(name), fmt::join(numbers, ", "), fmt::join(*shape, ", ")),
                      HintFor(wanted.shape->value, names_));
    return false;
  }
  if (wanted.count == nullptr) {
    if (found > 0) return true;
    diagnostics.Error(
        wanted.tensor->span,
        fmt::format("source {} has no tensor {}", Quote(source.name.value), Quote(pattern)),
        DidYouMean(pattern, folder.Names()));
    return false;
  }
  const auto count =
      EvaluateInteger(*wanted.count, names_, 0, kLargestExtent, "`count`", diagnostics);
  if (!count || *count == found) return true;
  diagnostics.Error(SpanOf(*wanted.count),
                    fmt::format("source {} has {} {}, not {}", Quote(source.name.value),
                                Count(found, "tensor"), Quote(pattern), *count),
                    HintFor({wanted.count}, names_));
  return false;
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
