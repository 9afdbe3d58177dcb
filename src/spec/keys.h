// Lists the keys that each mapping of a spec may hold, one row for each key. The parser (keys.cc,
// where rows and readers are together), "did you mean", the keys that `--set` may add, and the
// schema use these tables.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace shardinit {

// The policies for dimensions that their mesh axes do not divide.
inline constexpr std::string_view kUnevenPolicies[] = {"error", "chunk", "pad"};

enum class SpecKind {
  kVersion,
  kName,
  kPaths,  // names of files
  kNumber,
  kNumbers,  // by name
  kAssertions,
  kCondition,
  kVariables,  // by name
  kChoice,     // one of the row's words
  kUneven,
  kText,
  kDType,
  kEngine,
  kConfig,
  kConfigJson,
  kMesh,
  kDevices,
  kAxes,  // axes of a mesh
  kTraining,
  kRules,
  kSharding,
  kInits,  // by name
  kMultipliers,
  kSources,  // by name
  kMustHave,
  kBlocks,  // by name
  kBlock,   // the name of a block
  kNames,
  kModules,
  kLayouts,
  kShape,
  kLogicalAxes,
  kMeshAxes,  // axes that shard a dimension
  kShard,
  kStage,
  kInit,
  kKey,
  kTie,
  kDimensions,
  kRepeat,
  kPatterns,
  kView,
  kViews,  // one view or a list
};

struct SpecKey {
  std::string_view name;
  std::string_view description;  // a phrase, shown by editors
  SpecKind kind;
  std::span<const std::string_view> words = {};
  std::string_view default_text = {};  // as JSON; empty: no default
  bool required = false;
  // How to write the key: for `help`, for a wrong kind of value, and for a missing key.
  std::string_view hint = {};
};

// Returns whether a member of a module may have the same name as the key.
constexpr bool MayBeNamesake(const SpecKey& key) {
  return key.kind == SpecKind::kVariables || key.kind == SpecKind::kDType ||
         key.kind == SpecKind::kInit || key.kind == SpecKind::kBlock;
}

enum class SpecMapping {
  kModel,
  kSource,
  kMustHave,  // an entry of a source's `must_have`
  kAssertion,
  kMesh,
  kTraining,
  kTensor,
  kShard,  // an entry of a tensor's `shard`
  kModule,
  kLayout,
  kStoredTensor,
  kStoredModule,
  kBlock,
  kOperation,  // an operation of views, without the operation's own keys
};

// Returns whether the key takes a single value rather than a collection.
bool IsScalar(const SpecKey& key);

std::vector<SpecKey> KeysOf(SpecMapping mapping);
std::vector<SpecKey> OperationKeys();  // keys of kOperation (read_view.cc)

}  // namespace shardinit
