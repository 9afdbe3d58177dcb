// Converts a config.json of Hugging Face Transformers to a spec that includes its family's file,
// configs/huggingface/MODEL_TYPE.yaml. That file's key `config_json` defines the meaning of each
// field.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Returns whether a JSON tree is a config.json rather than a spec.
bool IsConfigJson(const Node& root);

// Returns the value of `model_type` if there is a family for it. Otherwise reports an error and
// returns null.
const Node* FindModelType(const Node& config, Diagnostics& diagnostics);

// Returns the family's file as an `include` names it: `<shardinit>/huggingface/llama.yaml`.
std::string FamilyFile(std::string_view model_type);

// Fields that a config.json lacks, with Transformers' defaults, which may be expressions.
using FieldDefaults = std::vector<std::pair<std::string, std::string>>;

struct ImportedConfig {
  // The parts of the spec, each to be merged over the parts before it. The first part has
  // everything except what particular field values add.
  std::vector<const Node*> parts;
  FieldDefaults defaults;
};

// Converts `config`. `family` is the root of the family's file, merged with its includes. Reports
// every field that the family cannot express.
ImportedConfig ImportConfig(const Node& config, const Node& family, NodeStore& store,
                            Diagnostics& diagnostics);

}  // namespace shardinit
