// Converts a config.json of Hugging Face Transformers to a spec on top of its family's file,
// configs/huggingface/MODEL_TYPE.yaml. The key `config_json` of that file says what each field
// means.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Tells whether a tree of JSON is a config.json and not a spec.
bool IsConfigJson(const Node& root);

// Returns the value of `model_type` if it has a family; otherwise reports the mistake and returns
// null.
const Node* FindModelType(const Node& config, Diagnostics& diagnostics);

// Returns the family's file as an `include` names it: `<shardinit>/huggingface/llama.yaml`.
std::string FamilyFile(std::string_view model_type);

// Fields that a config.json lacks, with Transformers' defaults, which may be expressions.
using FieldDefaults = std::vector<std::pair<std::string, std::string>>;

struct ImportedConfig {
  // What the config.json says, each part to be merged over the parts before it. The first part has
  // all but what single values of fields bring along.
  std::vector<const Node*> parts;
  FieldDefaults defaults;
};

// `family` is the root of the family's file merged with what it includes. Every field that the
// family cannot express is reported.
ImportedConfig ImportConfig(const Node& config, const Node& family, NodeStore& store,
                            Diagnostics& diagnostics);

}  // namespace shardinit
