// Writes the JSON Schema of a spec's mappings from their tables of keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/json_schema.h"
#include "spec/keys.h"

namespace shardinit {

using Keys = std::vector<SpecKey>;

class KeySchemaWriter : protected JsonSchemaWriter {
 protected:
  void WriteMapping(std::string_view name, std::string_view description, const Keys& keys);

  // `more` writes the rest of the schema.
  template <typename F>
  void WriteMapping(std::string_view name, std::string_view description, const Keys& keys, F more) {
    out_.Key(name).BeginObject(JsonWriter::kLines);
    out_.Member("description", description).Member("type", "object");
    out_.Member("additionalProperties", false);
    WriteProperties(keys);
    more();
    out_.EndObject();
  }

  // `member` is the schema of values whose names are not in `keys`. With `is_whole` a module needs
  // such a member, or one of the keys that stand for members.
  void WriteModule(std::string_view name, std::string_view description, const Keys& keys,
                   const std::string& member, bool is_whole = true);
  void WriteProperties(const Keys& keys);
  void WriteKey(const SpecKey& key);
  void WriteRequired(const Keys& keys);
};

}  // namespace shardinit
