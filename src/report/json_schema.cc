#include "report/json_schema.h"

#include <fmt/format.h>

namespace shardinit {

std::string Ref(std::string_view definition) {
  return fmt::format(R"({{"$ref": "#/definitions/{}"}})", definition);
}

std::string AllOf(std::string_view definition) { return fmt::format("[{}]", Ref(definition)); }

std::string ListOf(std::string_view definition) {
  return fmt::format(R"({{"type": "array", "items": {}}})", Ref(definition));
}

void JsonSchemaWriter::Define(std::string_view name, std::string_view members) {
  DefineRaw(name, fmt::format("{{{}}}", members));
}

void JsonSchemaWriter::DefineRaw(std::string_view name, std::string_view json) {
  out_.Key(name).Raw(json);
}

void JsonSchemaWriter::BeginOneOf(std::string_view definition) {
  out_.Key("anyOf").BeginArray(JsonWriter::kLines).Raw(Ref(definition));
  out_.BeginObject(JsonWriter::kLines).Member("type", "object").Member("minProperties", 1);
  out_.Member("maxProperties", 1).Member("additionalProperties", false);
  out_.Key("properties").BeginObject(JsonWriter::kLines);
}

void JsonSchemaWriter::EndOneOf() { out_.EndObject().EndObject().EndArray(); }

}  // namespace shardinit
