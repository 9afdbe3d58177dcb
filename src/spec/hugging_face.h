// A config.json of Hugging Face Transformers → a spec on top of its family's, the file
// huggingface/MODEL_TYPE.yaml of configs/, whose `config_json` says what each field means.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Whether a tree of JSON is a config.json, and no spec.
bool IsConfigJson(const Node& root);

// The value of `model_type`, which has a family. Null if not, which is reported.
const Node* FindModelType(const Node& config, Diagnostics& diagnostics);

// As an `include` names it: `<shardinit>/huggingface/llama.yaml`.
std::string FamilyFile(std::string_view model_type);

// What the config.json says, in parts, each to be merged over those before it; the first has all
// but what single values of fields bring along. `family` is the root of the family's file with what
// it includes. Every field that the family cannot express is reported.
std::vector<const Node*> ImportConfig(const Node& config, const Node& family, NodeStore& store,
                                      Diagnostics& diagnostics);

}  // namespace shardinit
