// Converts a spec's tree to a ModelSpec. The tables of keys (keys.cc) define the keys of each
// mapping, so the parser finds unknown keys as it reads.
#pragma once

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "spec/blocks.h"
#include "spec/keys.h"
#include "spec/reader.h"

namespace shardinit {

class SpecParser;

// A row of a table of keys, with the function that reads its value into a T.
template <typename T>
struct KeyRow : SpecKey {
  void (*read)(SpecParser& parser, const SpecKey& key, const Node::Entry& entry, T& out);
};

extern const std::vector<KeyRow<ModelSpec>> kModelKeys, kMeshKeys;
extern const std::vector<KeyRow<AssertSpec>> kAssertKeys;
extern const std::vector<KeyRow<SourceSpec>> kSourceKeys;
extern const std::vector<KeyRow<MustHaveSpec>> kMustHaveKeys;
extern const std::vector<KeyRow<TrainingSpec>> kTrainingKeys;
// A mapping that has the first key of one of these tables is a tensor.
extern const std::vector<KeyRow<TensorSpec>> kTensorKeys, kStoredTensorKeys;
extern const std::vector<KeyRow<ShardSpec>> kShardKeys;
extern const std::vector<KeyRow<ModuleSpec>> kModuleKeys, kBlockKeys, kLayoutKeys,
    kStoredModuleKeys;

// Returns whether a value is a tensor or a module with tensors.
bool HoldsTensor(const Node& value);
// Returns whether a member of a module has the key's name. Members had these names before the keys
// existed.
bool IsNamesake(const SpecKey& key, const Node& value);

class SpecParser : public SpecReader {
 public:
  using SpecReader::SpecReader;

  // Reads a mapping. `place` is where a missing key is reported; `what` names the mapping that
  // lacks it.
  template <typename T>
  void ReadMap(const Node& map, Span place, const std::string& what,
               const std::vector<KeyRow<T>>& keys, T& out) {
    NoteGaps(map);
    std::set<std::string> meant;  // keys close to unknown ones; "": an unknown one is close to none
    for (size_t i = 0; i < map.entries.size(); ++i) {
      const Node::Entry& entry = map.entries[i];
      if (const KeyRow<T>* key = FindNamed(keys, entry.key->text)) {
        const size_t before = Faults();
        if (ReportCutCall(map.entries, &i)) {
          out.wrong.Add(key->name);
          continue;
        }
        key->read(*this, *key, entry, out);
        if (Faults() != before) out.wrong.Add(key->name);
        continue;
      }
      const std::vector<std::string> names = NamesOf(keys);
      meant.insert(Closest(entry.key->text, names));
      Error(*entry.key, fmt::format("unknown key {} in {}", Quote(entry.key->text), what),
            DidYouMean(entry.key->text, names));
    }
    for (const KeyRow<T>& key : keys) {
      if (map.Find(key.name) != nullptr) continue;
      const bool misspelt = meant.count(std::string(key.name)) != 0;
      if (misspelt || IsPart(map) || meant.count("") != 0) out.wrong.Add(key.name);
      if (!key.required || misspelt || IsPart(map)) continue;
      ErrorAt(place, fmt::format("{} has no `{}`", what, key.name), std::string(key.hint));
      out.wrong.Add(key.name);
    }
  }

  void ReadName(const Node::Entry& entry, ModelSpec& model);
  void ReadConfig(const SpecKey& key, const Node::Entry& entry, ModelSpec& model);
  void ReadFamily(const SpecKey& key, const Node::Entry& entry, ModelSpec& model);
  void ReadAssertions(const SpecKey& key, const Node::Entry& entry, ModelSpec& model);
  void ReadMesh(const SpecKey& key, const Node::Entry& entry, ModelSpec& model);
  void ReadTraining(const SpecKey& key, const Node::Entry& entry, ModelSpec& model);
  void ReadDevices(const Node::Entry& entry, ModelSpec& model);
  void ReadRules(const SpecKey& key, const Node::Entry& entry, ModelSpec& model);
  void ReadSources(const SpecKey& key, const Node::Entry& entry, ModelSpec& model);
  void ReadMustHave(const SpecKey& key, const Node::Entry& entry, SourceSpec& source);
  void ReadMustHaveShape(const SpecKey& key, const Node::Entry& entry, MustHaveSpec& wanted);
  void ReadInits(const SpecKey& key, const Node::Entry& entry, ModelSpec& model);
  void ReadMultipliers(const SpecKey& key, const Node::Entry& entry, ModelSpec& model);
  void ReadModules(const SpecKey& key, const Node::Entry& entry, ModelSpec& model);
  void ReadLayouts(const SpecKey& key, const Node::Entry& entry, ModelSpec& model);

  void ReadModuleVariables(const Node::Entry& entry, ModuleSpec& module);
  // Rejects a mapping as the name of a block. SpecBlocks::Use() reads all other values.
  void ReadBlockName(const Node::Entry& entry, ModuleSpec&) {
    if (entry.value->IsMap()) IsText(entry);
  }
  // Reads `blocks` of the spec's tree. Call it before reading anything that uses a block.
  void ReadBlocks(const Node& root) { blocks_.Read(root, *this); }
  // Reads modules and tensors; in a layout, modules and stored tensors. `prefix` is the number of
  // bytes of the path before these names.
  void ReadModule(const Node::Entry& entry, size_t prefix,
                  const std::vector<KeyRow<ModuleSpec>>& keys, ModuleSpec& module);

  void ReadGlobs(const Node::Entry& entry, std::vector<Located<std::string>>& globs);
  void ReadShape(const SpecKey& key, const Node::Entry& entry, TensorSpec& tensor);
  void ReadTensorAxes(const SpecKey& key, const Node::Entry& entry, TensorSpec& tensor);
  void ReadShard(const SpecKey& key, const Node::Entry& entry, TensorSpec& tensor);
  std::optional<StageSpec> ReadStage(const Node::Entry& entry);
  void ReadKey(const Node::Entry& entry, TensorSpec& tensor);
  void ReadTie(const Node::Entry& entry, TensorSpec& tensor);

  LayoutSpec* layout() { return layout_; }

 private:
  void ReadMember(const Node::Entry& item, size_t prefix, ModuleSpec& module);
  // Returns true for a mapping with a shape (in a layout, with a `from`). Also recognizes a tensor
  // whose shape was forgotten. Such a mapping has a key that only tensors have, with a value that
  // no member has, or it has `dtype` or `init` and no members.
  bool IsTensor(const Node& map) const;
  // Gives the module's `dtype` and `init` to its tensors that have none.
  void GiveDefaults(ModuleSpec& module);
  bool IsNumbered(const Node::Entry& item) const;
  // Reads the name of a numbered module after the module itself; `prefix` includes the name.
  void ReadNumbered(const Node& name, size_t prefix, ModuleSpec& module);
  const std::vector<KeyRow<TensorSpec>>& TensorKeys() const {
    return layout_ != nullptr ? kStoredTensorKeys : kTensorKeys;
  }
  void CheckFans(const TensorSpec& tensor);
  void CheckRank(TensorSpec& tensor);
  ShardSpec ReadShardEntry(const Node& node);
  bool IsShort(const Node::Entry& entry);

  SpecBlocks blocks_;
  LayoutSpec* layout_ = nullptr;  // the layout that is being read
  bool shape_is_list_ = false;    // whether the current tensor's shape is a list
};

}  // namespace shardinit
