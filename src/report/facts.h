// Holds each fact that a command reports once: both the JSON and the table for people come from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/diagnostics.h"
#include "base/variant.h"

namespace shardinit {

class JsonWriter;
struct Fact;
using Facts = std::vector<Fact>;

using FactScalar =
    Variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, std::vector<int64_t>>;

// In JSON, an array of objects or of scalars without keys. For people, each item has its own row.
struct FactList {
  Facts items;
};

// In JSON, an array of objects. For people, its own table below all rows, with the fact's text
// above it. Rows are computed when shown: there may be millions.
struct FactTable {
  size_t rows = 0;
  std::vector<std::string> labels = {};        // for the first facts of a row; people see no others
  std::function<Facts(size_t)> row = nullptr;  // all values are scalars
  std::vector<bool> right = {};                // columns that are aligned to the right
};

// Facts in a value become the members of a JSON object.
using FactValue = std::variant<FactScalar, Facts, FactList, FactTable>;

// The row that people see. A fact without a label and a text has no row.
struct FactRow {
  std::string label = {};
  std::string text = {};   // empty: the value, if it is a scalar
  std::string place = {};  // where the user wrote the value
  int section = 0;         // rows are sorted by section, then by the order of the facts
};

struct Fact {
  std::string_view key = {};  // member name in JSON; empty: in a list, or only for people
  FactValue value = {};
  FactRow row = {};
};

// Adds the place where the user wrote a value, for people and for programs. In JSON it is a member
// `place` of the value's object; a scalar becomes the `value` of a new object. If the user did not
// write the value, the place is null in JSON and `nowhere` for people.
Fact At(Fact fact, const Span& place, std::string_view nowhere = "(default)");

void WriteTable(const FactTable& table, JsonWriter& out);
std::string TableInText(const FactTable& table);
std::string FactsInJson(const Facts& facts);
// Returns label, value and place of each fact, except facts with their own table.
std::vector<std::vector<std::string>> FactRows(const Facts& facts);
// Renders the rows as a table, then the other tables.
std::string FactsInText(const Facts& facts);

}  // namespace shardinit
