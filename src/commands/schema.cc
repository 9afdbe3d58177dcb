// Prints the JSON Schema of specs, from the tables that read them: keys, initializers, operations
// of views, element types, engines. The tables do not say which mapping stands in which; this file
// does.
#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "commands/command.h"
#include "commands/key_schema.h"
#include "expr/expr.h"
#include "graph/languages/languages.h"
#include "graph/stored/view.h"
#include "init/initializer.h"
#include "rng/engines.h"
#include "sharding/devices.h"
#include "spec/names.h"
#include "tensor/dtype.h"

namespace shardinit {
namespace {

// Describes a mapping of names to instances of a definition.
std::string MapOf(std::string_view definition, std::string_view members = {}) {
  return fmt::format(R"({{"type": "object", {}"propertyNames": {}, "additionalProperties": {}}})",
                     members, Ref("identifier"), Ref(definition));
}
constexpr std::string_view kOne = R"("minProperties": 1, "maxProperties": 1, )";

// Describes text that is no number: YAML tells the two apart before a schema sees them.
constexpr std::string_view kNotANumber =
    R"("not": {"pattern": "^[-+]?(\\.[0-9]+|[0-9]+(\\.[0-9]*)?)([eE][-+]?[0-9]+)?$"})";

// Describes the two forms of `file`: a path whose name has the digest, or a path and the digest
// (spec/read_file.cc).
constexpr std::string_view kFileForms =
    R"([{"type": "string", "pattern": "(^|/)[0-9a-f]{64}([.][^/]*)?$"}, {"type": "object", )"
    R"("properties": {"path": {"description": "relative to the file that has it", )"
    R"("type": "string", "minLength": 1}, "sha256": {"description": "of its bytes, if its name )"
    R"(does not have it", "type": "string", "pattern": "^[0-9a-f]{64}$"}}, )"
    R"("required": ["path"], "additionalProperties": false}])";

constexpr std::string_view kNormForm =
    R"({"of": {"description": "the path of the other tensor; `{i}` is the number of a repeat", )"
    R"("type": "string", "minLength": 1}})";

class SchemaWriter : KeySchemaWriter {
 public:
  std::string Write() {
    const Keys keys = KeysOf(SpecMapping::kModel);
    out_.BeginObject(JsonWriter::kLines);
    out_.Member("$schema", "http://json-schema.org/draft-07/schema#");
    out_.Member("$comment",
                "For editors. The program checks more: names, ranges, ranks, rules. A file that is "
                "only included need not be complete.");
    out_.Member("title", "shardinit spec, version 1");
    out_.Member("description", "every tensor of a model: shape, distribution, sharding");
    out_.Member("type", "object").Member("additionalProperties", false);
    // With an `include` the rest may be there; without a name and modules the file is a recipe.
    out_.Key("required").Raw(R"(["shardinit"])");
    out_.Key("anyOf").BeginArray(JsonWriter::kLines);
    out_.Raw(R"({"required": ["include"]})").Raw(R"({"required": ["name", "modules"]})");
    out_.Raw(R"({"not": {"anyOf": [{"required": ["name"]}, {"required": ["modules"]}]}})");
    out_.EndArray();
    out_.Key("if").Raw(R"({"required": ["include"]})");
    out_.Key("then").Raw(
        fmt::format(R"({{"properties": {{"modules": {}}}}})", Ref("partialModule")));
    out_.Key("else").Raw(fmt::format(R"({{"properties": {{"modules": {}}}}})", Ref("module")));
    WriteProperties(keys);
    out_.Key("definitions").BeginObject(JsonWriter::kLines);
    WriteValues();
    WriteInitializer();
    WriteModules();
    WriteLayouts();
    WriteView();
    out_.EndObject().EndObject();
    return out_.Finish();
  }

 private:
  // These methods write definitions.

  // Describes a key of JAX; each step has as many numbers as spec/read_key.cc says.
  static std::string JaxSteps() {
    const auto number = [](std::string_view name, std::string_view description) {
      return fmt::format(R"("{}": {{"description": "{}", "allOf": [{}]}})", name, description,
                         Ref("number"));
    };
    const auto pair = [](std::string_view name, std::string_view description) {
      return fmt::format(R"("{}": {{"description": "{}", "type": "array", "items": {}, )"
                         R"("minItems": 2, "maxItems": 2}})",
                         name, description, Ref("number"));
    };
    return fmt::format(
        R"({{"description": "of a key of JAX, in order", "type": "object", )"
        R"("properties": {{{}, {}, {}, {}}}, "additionalProperties": false}})",
        number("seed", "jax.random.key of it: a first step"),
        pair("words", "the two of jax.random.key_data: a first step"),
        pair("split", "a number of keys and the index of one: jax.random.split(key, N)[I]"),
        fmt::format(
            R"("fold_in": {{"description": "jax.random.fold_in(key, N); a list is what )"
            R"(Flax folds in", "anyOf": [{}, {{"type": "array", "minItems": 1, "items": )"
            R"({{"anyOf": [{{"type": "integer", "minimum": 0}}, {{"type": "string"}}]}}}}]}})",
            Ref("number")));
  }

  static std::string TorchKey() {
    return fmt::format(
        R"({{"type": "object", "properties": {{"torch": {{"description": )"
        R"("a place in the stream", "type": "object", "properties": {{"position": )"
        R"({{"description": "the number of words that are drawn before", "allOf": [{0}]}}, )"
        R"("spare": {{"description": "the position of the four words of which a second normal )"
        R"(number is left", "allOf": [{0}]}}, )"
        R"("skip": {{"description": "the number of words that are drawn after the tensor before", )"
        R"("allOf": [{0}]}}}}, "oneOf": [{{"required": ["position"]}}, {{"required": ["skip"]}}], )"
        R"("additionalProperties": false}}}}, "required": ["torch"], )"
        R"("additionalProperties": false}})",
        Ref("number"));
  }

  void WriteValues() {
    Define("number", R"("description": "a number, or an expression over `vars` such as )"
                     R"(`0.02 / sqrt(2 * layers)`", "anyOf": [{"type": "number"}, )" +
                         Ref("expression") + "]");
    Define("expression",
           fmt::format(R"("description": "+ - * /, comparisons, parentheses, names of `vars`, )"
                       R"(functions such as sqrt, max and ceil_div; whole numbers stay exact", )"
                       R"("type": "string", "minLength": 1, "maxLength": {}, )"
                       R"("pattern": "^[-+*/(),. \\t<>=!A-Za-z0-9_]+$", {})",
                       kLongestExpression, kNotANumber));
    Define(
        "identifier",
        fmt::format(R"("type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": {})",
                    kLongestPart));
    Define("name", fmt::format(R"("type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]*$", )"
                               R"("maxLength": {})",
                               kLongestPart));
    DefineRaw("jaxSteps", JaxSteps());
    Define("key", fmt::format(R"("anyOf": [{{"type": "string", "minLength": 1, "maxLength": {}}}, )"
                              R"({{"type": "object", "properties": {{"jax": {{"description": )"
                              R"("the steps that derive it", "anyOf": [{}, {}]}}}}, )"
                              R"("required": ["jax"], "additionalProperties": false}}, {}])",
                              kLongestPath, Ref("jaxSteps"), ListOf("jaxSteps"), TorchKey()));
    Define("tie",
           fmt::format(R"("type": "string", "minLength": 1, "maxLength": {})", kLongestPath));
    Define("path",
           fmt::format(R"("description": "letters, digits, `_` and `-`, in parts separated )"
                       R"(by dots; {{EXPRESSION}} stands for the number of a repeat", )"
                       R"("pattern": "^([A-Za-z0-9_-]|\\{{[^{{}}]+\\}}){{1,{0}}})"
                       R"((\\.([A-Za-z0-9_-]|\\{{[^{{}}]+\\}}){{1,{0}}})*$", "maxLength": {1})",
                       kLongestPart, kLongestPath));
    Define("files", R"("anyOf": [{"type": "string", "minLength": 1}, )"
                    R"({"type": "array", "items": {"type": "string", "minLength": 1}}])");
    Define("patterns", R"("type": "array", "items": {"type": "string"})");
    out_.Key("dtype").BeginObject().Member("description", "the element type that is stored");
    WriteWords("enum", DTypeNames());
    out_.EndObject();
    Define("dimension",
           R"("description": "a dimension of the tensor: the name of its logical axis, )"
           R"(or its position, from the end if negative", )"
           R"("anyOf": [{"type": "integer"}, )" +
               Ref("identifier") + "]");
    Define("dimensions",
           fmt::format(R"("anyOf": [{}, {}])", Ref("dimension"), ListOf("dimension")));
    Define("shape", R"("type": "array", "items": )" + Ref("number"));
    Define("logicalAxes",
           fmt::format(R"("type": "array", "items": {{"anyOf": [{{"type": "null"}}, {}]}})",
                       Ref("identifier")));
    Define("meshAxes",
           fmt::format(R"("description": "the mesh axes that cut a dimension, the first is major; )"
                       R"(null: not cut", "anyOf": [{{"type": "null"}}, {}, {}])",
                       Ref("identifier"), ListOf("identifier")));
    WriteMapping("cut", "how a dimension is cut", KeysOf(SpecMapping::kCut));
    Define("shard", fmt::format(R"("type": "array", "items": {{"anyOf": [{}, {}]}})",
                                Ref("meshAxes"), Ref("cut")));
    Define("stage", fmt::format(R"("anyOf": [{{"type": "null"}}, {{"type": "object", )"
                                R"("propertyNames": {}, "additionalProperties": {{"anyOf": [{}, )"
                                R"({{"type": "array", "minItems": 1, "items": {}}}]}}}}])",
                                Ref("identifier"), Ref("number"), Ref("number")));
    out_.Key("uneven").BeginObject().Key("anyOf").BeginArray().BeginObject();
    WriteWords("enum", kUnevenPolicies);
    out_.EndObject().Raw(fmt::format(R"({{"type": "object", "properties": {{"pad": {}}}, )"
                                     R"("required": ["pad"], "additionalProperties": false}})",
                                     Ref("number")));
    out_.EndArray().EndObject();
    DefineRaw("numbers", MapOf("number"));
    DefineRaw("repeat", MapOf("number", kOne));
    Define("rules", R"("anyOf": [{"type": "null"}, {"type": "array", "items": )" +
                        MapOf("meshAxes", kOne) + "}]");
    WriteSharding();
    DefineRaw("initializers", MapOf("initializer"));
    Define("axes", fmt::format(R"("anyOf": [{}, {{"type": "array", "items": {}}}])",
                               MapOf("number"), MapOf("number", kOne)));
    WriteMapping("mesh", "its axes, and which devices have its places", KeysOf(SpecMapping::kMesh));
    WriteMapping("training", "what is known of a step", KeysOf(SpecMapping::kTraining));
    std::vector<std::string_view> orders;
    for (const DeviceOrder& order : DeviceOrders()) orders.push_back(order.name);
    out_.Key("devices").BeginObject().Key("anyOf").BeginArray().BeginObject();
    WriteWords("enum", orders);
    out_.EndObject().Raw(R"({"description": "a file", "type": "string", "pattern": "[./]"})");
    out_.Raw(Ref("deviceIds")).EndArray().EndObject();
    Define("deviceIds", fmt::format(R"("description": "an id for each place; rows may be lists", )"
                                    R"("type": "array", "minItems": 1, "items": {{"anyOf": [{}, )"
                                    R"({{"type": "integer", "minimum": 0, "maximum": {}}}]}})",
                                    Ref("deviceIds"), kMaxDeviceId));
  }

  // Writes the languages of `sharding`, whose contents they define themselves (graph/languages/).
  void WriteSharding() {
    const std::string uneven = fmt::format(
        R"({{"description": "as the spec's, and before it", "allOf": {}}})", AllOf("uneven"));
    std::vector<std::string_view> names = {"uneven"}, words;
    for (const LanguageRow* language : Languages()) {
      names.push_back(language->name);
      if (language->is_word) words.push_back(language->name);
    }
    Define("sharding",
           fmt::format(R"("anyOf": [{{"type": "null"}}, {0}, {{"type": "array", "items": {0}}}])",
                       Ref("shardingItem")));
    out_.Key("shardingItem")
        .BeginObject(JsonWriter::kLines)
        .Key("anyOf")
        .BeginArray(JsonWriter::kLines);
    out_.BeginObject();
    WriteWords("enum", words);
    out_.EndObject();
    out_.Raw(R"({"description": "a file", "type": "string", "pattern": "[./]"})");
    out_.Raw(Ref("shardingMap"));
    out_.BeginObject(JsonWriter::kLines).Member("type", "object").Member("minProperties", 1);
    out_.Member("additionalProperties", false).Key("properties").BeginObject(JsonWriter::kLines);
    out_.Key("uneven").Raw(uneven);
    for (const LanguageRow* language : Languages()) {
      out_.Key(language->name).BeginObject().Member("description", language->description);
      if (language->name == "map") out_.Key("allOf").Raw(AllOf("shardingMap"));
      out_.EndObject();
    }
    out_.EndObject().EndObject().EndArray().EndObject();
    out_.Key("shardingMap").BeginObject(JsonWriter::kLines);
    out_.Member("description",
                "patterns of paths, in which `*` stands for a part of a path; each "
                "with mesh axes for the dimensions or placements for the mesh axes");
    out_.Member("type", "object").Member("minProperties", 1);
    out_.Key("properties").Raw(fmt::format(R"({{"uneven": {}}})", uneven));
    out_.Key("propertyNames").BeginObject().Key("not").BeginObject();
    names.erase(names.begin());
    WriteWords("enum", names);
    out_.EndObject().EndObject();
    out_.Key("additionalProperties")
        .Raw(R"({"type": ["null", "string", "array", "object"], "items": )"
             R"({"type": ["null", "string", "array"]}, "additionalProperties": )"
             R"({"type": ["null", "string"]}})");
    out_.EndObject();
  }

  void WriteInitializer() {
    out_.Key("initializer").BeginObject(JsonWriter::kLines);
    out_.Member("description",
                "the name of an initializer, of the spec's `init` or built in, or one with its "
                "arguments");
    BeginOneOf("identifier");
    for (const Initializer* initializer : Initializers()) {
      out_.Key(initializer->name).BeginObject(JsonWriter::kLines);
      out_.Member("description", initializer->description);
      if (initializer->name == "file") {
        out_.Key("anyOf").Raw(kFileForms);
      } else if (initializer->name == "norms") {
        out_.Key("properties").Raw(kNormForm);
        out_.Member("type", "object").Key("required").Raw(R"(["of"])");
        out_.Member("additionalProperties", false);
        // An initializer that is neither of these nor lowered, nor a formula, is the expression
        // itself.
      } else if (initializer->lower == nullptr && initializer->formula == nullptr) {
        out_.Key("allOf").Raw(AllOf("number"));
      } else {
        WriteParameters(initializer->parameters);
      }
      out_.EndObject();
    }
    EndOneOf();
    out_.EndObject();
  }

  void WriteParameters(std::span<const Parameter> parameters) {
    out_.Member("type", "object").Member("additionalProperties", false);
    out_.Key("properties").BeginObject(JsonWriter::kLines);
    std::vector<std::string> required;
    for (const Parameter& parameter : parameters) {
      out_.Key(parameter.name).BeginObject().Member("description", parameter.description);
      if (parameter.words.empty() || parameter.dimension) {
        out_.Key("allOf").Raw(AllOf("number"));  // a name of an axis is an expression, too
      } else if (!parameter.number) {
        WriteWords("enum", parameter.words);
      } else {
        out_.Key("anyOf").BeginArray().Raw(Ref("number")).BeginObject();
        WriteWords("enum", parameter.words);
        out_.EndObject().EndArray();
      }
      if (const auto* number = std::get_if<double>(&parameter.default_value)) {
        out_.Member("default", *number);
      } else if (const auto* word = std::get_if<std::string_view>(&parameter.default_value)) {
        out_.Member("default", *word);
      } else {
        required.emplace_back(parameter.name);
      }
      out_.EndObject();
    }
    out_.EndObject();
    if (!required.empty()) WriteWords("required", required);
  }

  void WriteModules() {
    const Keys keys = KeysOf(SpecMapping::kTensor);
    WriteMapping("tensor", "a tensor: has a `shape`", keys, [&] {
      out_.Key("not").Raw(R"({"required": ["fans"], "anyOf": [{"required": ["in_axis"]}, )"
                          R"({"required": ["out_axis"]}]})");
    });
    out_.Key("member").BeginObject(JsonWriter::kLines);
    out_.Member("type", "object").Key("if").Raw(R"({"required": ["shape"]})");
    out_.Key("then").BeginObject().Key("allOf").Raw(AllOf("tensor"));
    WriteRequired(keys);
    out_.EndObject().Key("else").Raw(Ref("module")).EndObject();
    WriteModule("module", "a module: a mapping without a `shape`", KeysOf(SpecMapping::kModule),
                Ref("member"));
    // Members of a file that includes others may give only what is new.
    WriteModule("partialModule", "a module, or what is new in one of an included file",
                KeysOf(SpecMapping::kModule),
                fmt::format(R"({{"anyOf": [{}, {}]}})", Ref("tensor"), Ref("partialModule")),
                false);
  }

  void WriteLayouts() {
    Define("layouts",
           fmt::format(R"("type": ["object", "null"], "propertyNames": {}, )"
                       R"("additionalProperties": {{"anyOf": [{}, {{"type": "null"}}]}})",
                       Ref("identifier"), Ref("layout")));
    WriteModule("layout", "a layout: a tree of modules whose leaves are stored tensors",
                KeysOf(SpecMapping::kLayout), Ref("storedMember"));
    WriteModule("storedModule", "a module of a layout: a mapping without a `from`",
                KeysOf(SpecMapping::kStoredModule), Ref("storedMember"));
    out_.Key("storedMember").BeginObject(JsonWriter::kLines);
    out_.Key("anyOf").BeginArray(JsonWriter::kLines).Raw(Ref("tensorPath"));
    out_.BeginObject().Member("description", "one of an included file, left out");
    out_.Member("type", "object").Key("required").Raw(R"(["when"])");
    out_.Key("properties").Raw(fmt::format(R"({{"when": {}}})", Ref("number")));
    out_.Member("additionalProperties", false).EndObject();
    out_.BeginObject().Member("type", "object").Key("if").Raw(R"({"required": ["from"]})");
    out_.Key("then").Raw(Ref("storedTensor")).Key("else").Raw(Ref("storedModule"));
    out_.EndObject().EndArray().EndObject();
    const Keys keys = KeysOf(SpecMapping::kStoredTensor);
    WriteMapping("storedTensor", "a stored tensor: has a `from`", keys);
  }

  void WriteView() {
    Define(
        "tensorPath",
        fmt::format(R"("description": "the path of a tensor of `modules`; {{EXPRESSION}} stands )"
                    R"(for a number", "type": "string", "minLength": 1, {})",
                    kNotANumber));
    Define("views",
           fmt::format(R"("anyOf": [{0}, {{"type": "array", "minItems": 1, "items": {0}}}])",
                       Ref("view")));
    out_.Key("view").BeginObject(JsonWriter::kLines);
    out_.Member("description", "a tensor of `modules`, or an operation on such");
    BeginOneOf("tensorPath");
    for (const ViewOperation& operation : ViewOperations()) WriteOperation(operation);
    EndOneOf();
    out_.EndObject();
  }

  void WriteOperation(const ViewOperation& operation) {
    out_.Key(operation.name).BeginObject(JsonWriter::kLines);
    out_.Member("description", operation.description);
    out_.Member("type", "object").Member("additionalProperties", false);
    out_.Key("properties").BeginObject(JsonWriter::kLines);
    std::vector<std::string> required;
    for (const ViewParameter& parameter : operation.parameters) {
      out_.Key(parameter.name).BeginObject().Member("description", parameter.description);
      out_.Key("allOf").Raw(AllOf(parameter.kind == ViewParameter::kIntegers ? "shape" : "number"));
      if (!parameter.default_value) {
        required.emplace_back(parameter.name);
      } else if (const auto* integer = std::get_if<int64_t>(&*parameter.default_value)) {
        out_.Member("default", *integer);
      } else if (const auto* number = std::get_if<double>(&*parameter.default_value)) {
        out_.Member("default", *number);
      }
      out_.EndObject();
    }
    for (SpecKey key : KeysOf(SpecMapping::kOperation)) {
      if (!operation.many && key.kind != SpecKind::kViews) continue;
      if (!operation.many) key.kind = SpecKind::kView;
      WriteKey(key);
      if (key.required) required.emplace_back(key.name);
    }
    out_.EndObject();
    WriteWords("required", required);
    out_.EndObject();
  }
};

}  // namespace

extern const Command kSchema = {
    .name = "schema",
    .summary = "Print the JSON Schema of specs, for editors",
    .configure = [](CLI::App&) -> std::function<ExitCode()> {
      return [] {
        Print(SchemaWriter().Write());
        return ExitCode::kOk;
      };
    },
};

}  // namespace shardinit
