#include "spec/room.h"

#include <utility>

#include "base/table.h"

namespace shardinit {
namespace {

// Returns the room in a module whose members begin at step `first` of the way.
AllowedContent RoomInModule(const std::vector<WayStep>& way, size_t first, const Node* at) {
  const bool is_stored = way[0].key == "layouts";
  const auto keys_of_module = [&](size_t step) {
    if (!is_stored) return KeysOf(SpecMapping::kModule);
    return KeysOf(step == first ? SpecMapping::kLayout : SpecMapping::kStoredModule);
  };
  for (size_t i = first; i < way.size(); ++i) {
    // The value of a key is checked when it is read.
    if (IsWholeTensor(way[i].from) || FindNamed(keys_of_module(i), way[i].key) != nullptr) {
      return {.takes_names = true};
    }
  }
  if (IsWholeTensor(at)) {
    return {.keys = KeysOf(is_stored ? SpecMapping::kStoredTensor : SpecMapping::kTensor)};
  }
  return {.keys = keys_of_module(way.size()), .takes_names = true, .has_members = true};
}

}  // namespace

AllowedContent AllowedContentAt(const std::vector<WayStep>& way, const Node* at) {
  const std::vector<SpecKey> of_model = KeysOf(SpecMapping::kModel);
  if (way.empty()) {
    std::vector<SpecKey> keys = of_model;
    // These are resolved when files are read.
    std::erase_if(keys, [](const SpecKey& key) {
      return key.kind == SpecKind::kPaths || key.kind == SpecKind::kConfigJson;
    });
    return {.keys = std::move(keys)};
  }
  const SpecKey* key = FindNamed(of_model, way[0].key);
  if (key == nullptr) return {};
  const bool is_first = way.size() == 1;
  switch (key->kind) {
    case SpecKind::kMesh:
      return is_first ? AllowedContent{.keys = KeysOf(SpecMapping::kMesh)}
                      : AllowedContent{.takes_names = true};
    case SpecKind::kTraining:
      return is_first ? AllowedContent{.keys = KeysOf(SpecMapping::kTraining)} : AllowedContent{};
    case SpecKind::kSources:
      return is_first ? AllowedContent{.takes_names = true}
                      : AllowedContent{.keys = KeysOf(SpecMapping::kSource)};
    case SpecKind::kAssertions:
      return is_first ? AllowedContent{.is_list = true}
                      : AllowedContent{.keys = KeysOf(SpecMapping::kAssertion)};
    case SpecKind::kRules:
      return {.is_list = is_first};
    case SpecKind::kSharding:
      return {.takes_names = true, .has_members = true};  // patterns of paths contain dots
    case SpecKind::kVariables:
    case SpecKind::kNumbers:
    case SpecKind::kInits:
    case SpecKind::kMultipliers:
    case SpecKind::kConfig:
      return {.takes_names = true};
    case SpecKind::kModules:
      return RoomInModule(way, 1, at);
    case SpecKind::kLayouts:
      return is_first ? AllowedContent{.takes_names = true} : RoomInModule(way, 2, at);
    default:
      return {};
  }
}

bool IsWholeTensor(const Node* member) {
  return member != nullptr && member->IsMap() &&
         (member->Find("shape") != nullptr || member->Find("from") != nullptr);
}

}  // namespace shardinit
