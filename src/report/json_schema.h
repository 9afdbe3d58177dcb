// Writes the parts that every JSON Schema has: references to its definitions, lists of words,
// choices.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace shardinit {

std::string Ref(std::string_view definition);
// Writes a reference within `allOf`: editors show what stands beside it, but not what stands beside
// `$ref`.
std::string AllOf(std::string_view definition);
std::string ListOf(std::string_view definition);

class JsonSchemaWriter {
 protected:
  // `members` are the members of an object, such as `"type": "array"`.
  void Define(std::string_view name, std::string_view members);
  void DefineRaw(std::string_view name, std::string_view json);

  template <typename Words>
  void WriteWords(std::string_view key, const Words& words) {
    out_.Key(key).BeginArray();
    for (const auto& word : words) out_.Value(std::string_view(word));
    out_.EndArray();
  }

  // Begins an instance of `definition`, or a mapping with one of the properties that follow.
  void BeginOneOf(std::string_view definition);
  void EndOneOf();

  JsonWriter out_;
};

}  // namespace shardinit
