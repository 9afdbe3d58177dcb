// Holds each fact that a command reports once: JSON for programs and rows of a table for people are
// made of the same facts.
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

struct Fact;
using Facts = std::vector<Fact>;

using FactScalar =
    Variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, std::vector<int64_t>>;

// This is an array in JSON, of objects or of scalars without keys. Each item has a row of its own.
struct FactList {
  Facts items;
};

// This is an array of equal objects in JSON, and for people a table of its own below all rows, with
// the fact's text above it. Its cells are made when they are shown: there may be millions of rows.
struct FactTable {
  struct Column {
    std::string_view key, label;  // either may be empty, as in a Fact
    std::function<FactScalar(size_t row)> cell;
  };
  size_t rows = 0;
  std::vector<Column> columns = {};
};

// Facts in a value are the members of an object.
using FactValue = std::variant<FactScalar, Facts, FactList, FactTable>;

// People see a fact as a row; without a label and a text there is none.
struct FactRow {
  std::string label = {};
  std::string text = {};   // empty: the value, if it is a scalar
  std::string place = {};  // where the value is written
  int section = 0;         // rows are sorted by section, then by the order of the facts
};

struct Fact {
  std::string_view key = {};  // member name in JSON; empty: in a list, or for people alone
  FactValue value = {};
  FactRow row = {};
};

// Adds the place where a value is written, for people and for programs. In JSON it is a member
// `place` of the value's object; a scalar becomes the `value` of a new object. The place of a
// value that is not written is null in JSON, and `nowhere` for people.
Fact At(Fact fact, const Span& place, std::string_view nowhere = "(default)");

std::string FactsInJson(const Facts& facts);
// Returns label, value and place of each fact, but not of those with a table of their own.
std::vector<std::vector<std::string>> FactRows(const Facts& facts);
// Renders these rows as a table, then the other tables.
std::string FactsInText(const Facts& facts);

}  // namespace shardinit
