// What the mappings of a spec may hold, one row for each key. The parser (keys.cc, where the
// readers stand beside the rows), "did you mean", what `--set` may add and the schema follow from
// them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace shardinit {

// What to do with dimensions that mesh axes do not divide.
inline constexpr std::string_view kUnevenPolicies[] = {"error", "chunk", "pad"};

// What a key takes.
enum class SpecKind {
  kVersion,
  kName,
  kPaths,  // Of files.
  kNumber,
  kNumbers,  // By name.
  kChoice,   // One of the row's words.
  kUneven,
  kDType,
  kEngine,
  kConfig,
  kConfigJson,
  kMesh,
  kDevices,
  kAxes,  // Of a mesh.
  kTraining,
  kRules,
  kSharding,
  kInits,  // By name.
  kModules,
  kLayouts,
  kShape,
  kLogicalAxes,
  kMeshAxes,  // That cut a dimension.
  kShard,
  kStage,
  kInit,
  kKey,
  kTie,
  kDimensions,
  kRepeat,
  kPatterns,
  kView,
  kViews,  // One, or a list.
};

struct SpecKey {
  std::string_view name;
  std::string_view description;  // For editors: a phrase.
  SpecKind kind;
  std::span<const std::string_view> words = {};
  std::string_view default_text = {};  // As JSON; empty: none.
  bool required = false;
  std::string_view hint = {};  // What to do if a required one is missing.
};

enum class SpecMapping {
  kModel,
  kMesh,
  kTraining,
  kTensor,
  kCut,  // An entry of a tensor's `shard`.
  kModule,
  kLayout,
  kStoredTensor,
  kStoredModule,
  kOperation,  // Of views; its other keys are the operation's own.
};

std::vector<SpecKey> KeysOf(SpecMapping mapping);
std::vector<SpecKey> OperationKeys();  // Those of kOperation (read_view.cc).

}  // namespace shardinit
