#include "graph/explanation.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/glob.h"
#include "graph/building.h"
#include "graph/drawn/expand.h"
#include "graph/stored/view.h"

namespace shardinit {
namespace {

// Returns the path of one iteration of a repeat.
std::string Numbered(const ModuleSpec& module, const std::string& path, std::string_view number) {
  if (!module.numbered) return JoinPaths(path, std::string(number));
  std::string numbered = path;
  for (size_t open; (open = numbered.find('{')) != numbered.npos;) {
    numbered.replace(open, numbered.find('}', open) + 1 - open, number);
  }
  return numbered;
}

// Returns the paths of a module that is left out. Does not evaluate its expressions: its repeat
// gets the numbers that occur in `pattern`.
std::vector<std::string> PathsOf(const ModuleSpec& module, const std::string& path,
                                 std::string_view pattern) {
  if (!module.repeat) return {path};
  std::vector<std::string> paths = {Numbered(module, path, "0")};
  constexpr std::string_view kDigits = "0123456789";
  while (!pattern.empty()) {
    pattern.remove_prefix(std::min(pattern.find_first_of(kDigits), pattern.size()));
    const std::string_view number = pattern.substr(0, pattern.find_first_not_of(kDigits));
    if (!number.empty()) paths.push_back(Numbered(module, path, number));
    pattern.remove_prefix(number.size());
  }
  return paths;
}

}  // namespace

bool Recorder::IsWanted(const std::string& path) const {
  return !notes_->tensor && PathMatches(notes_->pattern, path);
}

void Recorder::Find(size_t tensor, const std::string& path, const Span& place,
                    std::span<const Condition> conditions) {
  if (!IsWanted(path)) return;
  notes_->tensor = tensor;
  notes_->place = place;
  SetTaking(true);
  for (const auto& [when, blocks] : conditions) {
    const SpecScope::OutsideBlocks outside(names_, blocks);
    Diagnostics heard_before;
    const auto value = EvaluateNumber(*when, names_, heard_before);
    notes_->conditions.push_back(
        {"when", TextOf(*when), fmt::format("{}", value.value_or(0)), SpanOf(*when)});
  }
}

void Recorder::SetTaking(bool takes) {
  is_taking_ = takes;
  names_.Trace(takes ? &notes_->variables : nullptr);
}

void Recorder::NoteLeftOut(const std::string& path, const TensorSpec&, const Expr& when) {
  if (!IsWanted(path) || notes_->left_out) return;
  notes_->left_out = {path, {"when", TextOf(when), {}, SpanOf(when)}};
}

void Recorder::NoteLeftOut(const std::string& path, const ModuleSpec& module, const Expr& when) {
  if (--left_out_budget_ < 0) return;
  for (const std::string& prefix : PathsOf(module, path, notes_->pattern)) {
    for (const auto& member : module.members) {
      const std::string inner = JoinPaths(prefix, member.name.value);
      if (const auto* submodule = std::get_if<std::unique_ptr<ModuleSpec>>(&member.value)) {
        NoteLeftOut(inner, **submodule, when);
      } else {
        NoteLeftOut(inner, std::get<TensorSpec>(member.value), when);
      }
    }
  }
}

void NotePlaces(const std::string& layout, const WrittenTensors& stored, Explanation& notes) {
  auto& places = notes.places;
  const size_t before = places.size();
  for (size_t i = 0; i < stored.tensors.size(); ++i) {
    const Tensor& tensor = stored.tensors[i];
    if (!notes.tensor) {
      if (!places.empty() || !PathMatches(notes.pattern, tensor.path())) continue;
      places.push_back({layout, std::string(tensor.path()), tensor.view(), tensor.elements(), {}});
      continue;
    }
    int64_t elements = 0;
    for (const Piece& piece : tensor.view()->pieces) {
      if (piece.source == static_cast<int64_t>(*notes.tensor)) elements += piece.elements();
    }
    if (elements == 0) continue;
    places.push_back(
        {layout, std::string(tensor.path()), tensor.view(), elements, *stored.places[i]});
  }
  if (notes.tensor && places.size() == before) places.push_back({layout, {}, nullptr, 0, {}});
}

}  // namespace shardinit
