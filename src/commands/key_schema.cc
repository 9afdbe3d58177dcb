#include "commands/key_schema.h"

#include "rng/engines.h"

namespace shardinit {
namespace {

// Returns the definition that a key's value is an instance of; null if it has none.
const char* DefinitionOf(SpecKind kind) {
  switch (kind) {
    case SpecKind::kName:
      return "name";
    case SpecKind::kPaths:
      return "files";
    case SpecKind::kNumber:
      return "number";
    case SpecKind::kNumbers:
      return "numbers";
    case SpecKind::kDType:
      return "dtype";
    case SpecKind::kAxes:
      return "axes";
    case SpecKind::kMesh:
      return "mesh";
    case SpecKind::kDevices:
      return "devices";
    case SpecKind::kTraining:
      return "training";
    case SpecKind::kRules:
      return "rules";
    case SpecKind::kSharding:
      return "sharding";
    case SpecKind::kInits:
      return "initializers";
    case SpecKind::kLayouts:
      return "layouts";
    case SpecKind::kShape:
      return "shape";
    case SpecKind::kLogicalAxes:
      return "logicalAxes";
    case SpecKind::kMeshAxes:
      return "meshAxes";
    case SpecKind::kShard:
      return "shard";
    case SpecKind::kStage:
      return "stage";
    case SpecKind::kInit:
      return "initializer";
    case SpecKind::kKey:
      return "key";
    case SpecKind::kTie:
      return "tie";
    case SpecKind::kDimensions:
      return "dimensions";
    case SpecKind::kUneven:
      return "uneven";
    case SpecKind::kRepeat:
      return "repeat";
    case SpecKind::kPatterns:
      return "patterns";
    case SpecKind::kView:
      return "view";
    case SpecKind::kViews:
      return "views";
    case SpecKind::kVersion:
    case SpecKind::kChoice:
    case SpecKind::kEngine:
    case SpecKind::kConfig:
    case SpecKind::kConfigJson:
    case SpecKind::kModules:
      break;
  }
  return nullptr;
}

}  // namespace

void KeySchemaWriter::WriteMapping(std::string_view name, std::string_view description,
                                   const Keys& keys) {
  WriteMapping(name, description, keys, [&] { WriteRequired(keys); });
}

void KeySchemaWriter::WriteModule(std::string_view name, std::string_view description,
                                  const Keys& keys, const std::string& member, bool is_whole) {
  out_.Key(name).BeginObject(JsonWriter::kLines);
  out_.Member("description", description).Member("type", "object").Member("minProperties", 1);
  out_.Key("propertyNames").Raw(Ref("path"));
  WriteProperties(keys);
  out_.Key("additionalProperties").Raw(member);
  if (is_whole) {
    std::vector<std::string> names;
    for (const SpecKey& key : keys) {
      if (key.name != "keep" && key.name != "stack") names.emplace_back(key.name);
    }
    out_.Key("not").BeginObject().Key("propertyNames").BeginObject();
    WriteWords("enum", names);
    out_.EndObject().EndObject();
  }
  out_.EndObject();
}

void KeySchemaWriter::WriteProperties(const Keys& keys) {
  out_.Key("properties").BeginObject(JsonWriter::kLines);
  for (const SpecKey& key : keys) WriteKey(key);
  out_.EndObject();
}

void KeySchemaWriter::WriteKey(const SpecKey& key) {
  out_.Key(key.name).BeginObject().Member("description", key.description);
  if (const char* definition = DefinitionOf(key.kind)) {
    out_.Key("allOf").Raw(AllOf(definition));
  } else if (key.kind == SpecKind::kVersion) {
    out_.Member("const", 1);
  } else if (key.kind == SpecKind::kChoice) {
    WriteWords("enum", key.words);
  } else if (key.kind == SpecKind::kEngine) {
    WriteWords("enum", EngineNames());
    out_.Member("default", Engines().front()->name);
  } else if (key.kind == SpecKind::kConfig) {
    out_.Key("type").Raw(R"(["object", "null"])");
  } else {
    out_.Member("type", "object");
  }
  if (!key.default_text.empty()) out_.Key("default").Raw(key.default_text);
  out_.EndObject();
}

void KeySchemaWriter::WriteRequired(const Keys& keys) {
  std::vector<std::string> names;
  for (const SpecKey& key : keys) {
    if (key.required) names.emplace_back(key.name);
  }
  WriteWords("required", names);
}

}  // namespace shardinit
