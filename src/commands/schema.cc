// Prints the JSON Schema of specs. Fills in a template from the parser's tables of keys,
// initializers, view operations, `sharding` languages, element types and engines.
#include "commands/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/table.h"
#include "commands/command.h"
#include "commands/names.h"
#include "expr/expr.h"
#include "graph/languages/languages.h"
#include "graph/stored/view.h"
#include "init/initializer.h"
#include "report/template.h"
#include "rng/engines.h"
#include "sharding/devices.h"
#include "spec/keys.h"
#include "spec/names.h"
#include "tensor/dtype.h"

namespace shardinit {
namespace {

using Keys = std::vector<SpecKey>;

// The schema's definitions for kinds of values. Other kinds have no definition.
constexpr std::pair<SpecKind, std::string_view> kDefinitions[] = {
    {SpecKind::kName, "name"},
    {SpecKind::kPaths, "files"},
    {SpecKind::kNumber, "number"},
    {SpecKind::kNumbers, "numbers"},
    {SpecKind::kAssertions, "assertions"},
    {SpecKind::kText, "text"},
    {SpecKind::kCondition, "condition"},
    {SpecKind::kVariables, "variables"},
    {SpecKind::kDType, "dtype"},
    {SpecKind::kAxes, "axes"},
    {SpecKind::kMesh, "mesh"},
    {SpecKind::kDevices, "devices"},
    {SpecKind::kTraining, "training"},
    {SpecKind::kRules, "rules"},
    {SpecKind::kSharding, "sharding"},
    {SpecKind::kInits, "initializers"},
    {SpecKind::kMultipliers, "multipliers"},
    {SpecKind::kSources, "sources"},
    {SpecKind::kMustHave, "mustHave"},
    {SpecKind::kLayouts, "layouts"},
    {SpecKind::kBlocks, "blocks"},
    {SpecKind::kBlock, "identifier"},
    {SpecKind::kNames, "names"},
    {SpecKind::kShape, "shape"},
    {SpecKind::kLogicalAxes, "logicalAxes"},
    {SpecKind::kMeshAxes, "meshAxes"},
    {SpecKind::kShard, "shard"},
    {SpecKind::kStage, "stage"},
    {SpecKind::kInit, "initializer"},
    {SpecKind::kKey, "key"},
    {SpecKind::kTie, "tie"},
    {SpecKind::kDimensions, "dimensions"},
    {SpecKind::kUneven, "uneven"},
    {SpecKind::kRepeat, "repeat"},
    {SpecKind::kPatterns, "patterns"},
    {SpecKind::kView, "view"},
    {SpecKind::kViews, "views"},
};

// Writes a reference to a definition, within `allOf`. Editors show text next to `allOf`, but not
// next to `$ref`.
void WriteInstance(std::string_view definition, JsonWriter& out) {
  out.Key("allOf").Raw(fmt::format(R"([{{"$ref": "#/definitions/{}"}}])", definition));
}

template <typename Words>
std::string ListOf(const Words& words) {
  return JsonWriter().Value(words).Take();
}

void WriteKey(const SpecKey& key, JsonWriter& out, bool of_module = false) {
  out.Key(key.name).BeginObject().Member("description", key.description);
  const std::string_view definition = DefinitionOf(key.kind);
  if (of_module && MayBeNamesake(key)) {
    out.Key("anyOf").Raw(fmt::format(
        R"([{{"$ref": "#/definitions/{}"}}, {{"$ref": "#/definitions/namesake"}}])", definition));
  } else if (!definition.empty()) {
    WriteInstance(definition, out);
  } else if (key.kind == SpecKind::kVersion) {
    out.Member("const", 1);
  } else if (key.kind == SpecKind::kChoice) {
    out.Member("enum", key.words);
  } else if (key.kind == SpecKind::kEngine) {
    out.Member("enum", EngineNames()).Member("default", Engines().front()->name);
  } else if (key.kind == SpecKind::kConfig) {
    out.Key("type").Raw(R"(["object", "null"])");
  } else {
    out.Member("type", "object");
  }
  if (!key.default_text.empty()) out.Key("default").Raw(key.default_text);
  out.EndObject();
}

// Begins the schema of an object with named arguments.
void BeginArguments(std::string_view name, std::string_view description, JsonWriter& out) {
  out.Key(name).BeginObject(JsonWriter::kLines).Member("description", description);
  out.Member("type", "object").Member("additionalProperties", false);
  out.Key("properties").BeginObject(JsonWriter::kLines);
}

void WriteInitializer(const Initializer& initializer, JsonWriter& out) {
  if (initializer.lower == nullptr && initializer.formula == nullptr) {  // the expression itself
    out.Key(initializer.name).BeginObject(JsonWriter::kLines);
    out.Member("description", initializer.description);
    WriteInstance("number", out);
    out.EndObject();
    return;
  }
  BeginArguments(initializer.name, initializer.description, out);
  std::vector<std::string_view> required;
  for (const Parameter& parameter : initializer.parameters) {
    out.Key(parameter.name).BeginObject().Member("description", parameter.description);
    if (parameter.words.empty() || parameter.dimension) {
      WriteInstance("number", out);  // an axis name is also an expression
    } else if (!parameter.number) {
      out.Member("enum", parameter.words);
    } else {
      out.Key("anyOf").BeginArray().Raw(R"({"$ref": "#/definitions/number"})").BeginObject();
      out.Member("enum", parameter.words).EndObject().EndArray();
    }
    if (const auto* number = std::get_if<double>(&parameter.default_value)) {
      out.Member("default", *number);
    } else if (const auto* word = std::get_if<std::string_view>(&parameter.default_value)) {
      out.Member("default", *word);
    } else {
      required.push_back(parameter.name);
    }
    out.EndObject();
  }
  out.EndObject();
  if (!required.empty()) out.Member("required", required);
  out.EndObject();
}

void WriteOperation(const ViewOperation& operation, JsonWriter& out) {
  BeginArguments(operation.name, operation.description, out);
  std::vector<std::string_view> required;
  for (const ViewParameter& parameter : operation.parameters) {
    out.Key(parameter.name).BeginObject().Member("description", parameter.description);
    WriteInstance(parameter.kind == ViewParameter::kIntegers ? "shape" : "number", out);
    if (!parameter.default_value) {
      required.push_back(parameter.name);
    } else if (const auto* integer = std::get_if<int64_t>(&*parameter.default_value)) {
      out.Member("default", *integer);
    } else if (const auto* number = std::get_if<double>(&*parameter.default_value)) {
      out.Member("default", *number);
    }
    out.EndObject();
  }
  for (SpecKey key : KeysOf(SpecMapping::kOperation)) {
    if (!operation.many && key.kind != SpecKind::kViews) continue;
    if (!operation.many) key.kind = SpecKind::kView;
    WriteKey(key, out);
    if (key.required) required.push_back(key.name);
  }
  out.EndObject().Member("required", required).EndObject();
}

// Returns the members that `write` writes, one per line.
template <typename F>
std::string Members(const F& write) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  out.Take();
  write(out);
  // The members start with a newline and are indented by one space.
  std::string members = out.Take().substr(2);
  for (size_t line = 0; (line = members.find("\n ", line)) != members.npos;) {
    members.erase(++line, 1);
  }
  return members;
}

void AddMapping(const std::string& name, SpecMapping mapping, TemplateValues* values) {
  const Keys keys = KeysOf(mapping);
  (*values)["keys of " + name] = Members([&](JsonWriter& out) {
    const bool of_module = mapping == SpecMapping::kModule || mapping == SpecMapping::kBlock;
    for (const SpecKey& key : keys) WriteKey(key, out, of_module);
  });
  std::vector<std::string_view> required, beside_members;
  for (const SpecKey& key : keys) {
    if (key.required) required.push_back(key.name);
    // A module may consist of one of these three keys alone, without members.
    if (key.name != "keep" && key.name != "stack" && key.name != "block")
      beside_members.push_back(key.name);
  }
  (*values)["required of " + name] = ListOf(required);
  (*values)["keys beside members of " + name] = ListOf(beside_members);
}

void AddLanguages(TemplateValues* values) {
  std::vector<std::string_view> names, words;
  for (const LanguageRow* language : Languages()) {
    names.push_back(language->name);
    if (language->is_word) words.push_back(language->name);
  }
  (*values)["languages"] = Members([](JsonWriter& out) {
    for (const LanguageRow* language : Languages()) {
      out.Key(language->name).BeginObject().Member("description", language->description);
      if (language->name == "map") WriteInstance("shardingMap", out);
      out.EndObject();
    }
  });
  (*values)["language names"] = ListOf(names);
  (*values)["language words"] = ListOf(words);
}

void AddInitializers(TemplateValues* values) {
  (*values)["initializers"] = Members([&](JsonWriter& out) {
    for (const Initializer* initializer : Initializers()) {
      // The template defines these initializers, whose arguments are not parameters.
      constexpr std::string_view kWritten[] = {"file", "norms", "source", "rows_like", "parts"};
      if (Contains(kWritten, initializer->name)) {
        JsonWriter description;
        (*values)[fmt::format("description of {}", initializer->name)] =
            description.Value(initializer->description).Take();
      } else {
        WriteInitializer(*initializer, out);
      }
    }
  });
}

}  // namespace

std::string_view DefinitionOf(SpecKind kind) {
  const auto found = std::find_if(std::begin(kDefinitions), std::end(kDefinitions),
                                  [&](const auto& row) { return row.first == kind; });
  return found == std::end(kDefinitions) ? std::string_view() : found->second;
}

std::string SpecSchema() {
  std::vector<std::string_view> orders;
  for (const DeviceOrder& order : DeviceOrders()) orders.push_back(order.name);
  TemplateValues values = {
      {"longest expression", fmt::to_string(kLongestExpression)},
      {"longest part", fmt::to_string(kLongestPart)},
      {"longest path", fmt::to_string(kLongestPath)},
      {"largest device", fmt::to_string(kMaxDeviceId)},
      {"element types", ListOf(DTypeNames())},
      {"uneven", ListOf(kUnevenPolicies)},
      {"functions", fmt::to_string(fmt::join(FunctionPhrases(), "; "))},
      {"device orders", ListOf(orders)},
      {"operations", Members([](JsonWriter& out) {
         for (const ViewOperation& operation : ViewOperations()) WriteOperation(operation, out);
       })},
  };
  const std::pair<const char*, SpecMapping> kMappings[] = {
      {"model", SpecMapping::kModel},
      {"source", SpecMapping::kSource},
      {"must have", SpecMapping::kMustHave},
      {"assertion", SpecMapping::kAssertion},
      {"mesh", SpecMapping::kMesh},
      {"training", SpecMapping::kTraining},
      {"tensor", SpecMapping::kTensor},
      {"cut", SpecMapping::kShard},
      {"module", SpecMapping::kModule},
      {"block", SpecMapping::kBlock},
      {"layout", SpecMapping::kLayout},
      {"stored module", SpecMapping::kStoredModule},
      {"stored tensor", SpecMapping::kStoredTensor},
  };
  for (const auto& [name, mapping] : kMappings) AddMapping(name, mapping, &values);
  AddLanguages(&values);
  AddInitializers(&values);
  return FillTemplate("spec.schema.json", values);
}

extern const Command kSchema = {
    .name = "schema",
    .summary = "Print the JSON Schema of specs, for editors",
    .configure = [](CLI::App&) -> std::function<ExitCode()> {
      return [] {
        PrintExactly(SpecSchema());
        return ExitCode::kOk;
      };
    },
};

}  // namespace shardinit
