// What a command has to say, each thing once: JSON for programs and rows of a table for people are
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

namespace shardinit {

struct Fact;
using Facts = std::vector<Fact>;

using FactScalar = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string,
                                std::vector<int64_t>>;

// An array in JSON, of objects or scalars without keys. Each has a row of its own.
struct FactList {
  Facts items;
};

// An array of equal objects in JSON; for people a table of its own below all rows, with the fact's
// text above it. Its cells are made when they are shown: there may be millions of rows.
struct FactTable {
  struct Column {
    std::string_view key, label;  // Either may be empty, as those of a fact.
    std::function<FactScalar(size_t row)> cell;
  };
  size_t rows = 0;
  std::vector<Column> columns = {};
};

// Facts in it are the members of an object.
using FactValue = std::variant<FactScalar, Facts, FactList, FactTable>;

// For people; there is none without a label and a text.
struct FactRow {
  std::string label = {};
  std::string text = {};   // Empty: the value, if it is a scalar.
  std::string place = {};  // Where it was written.
  int section = 0;         // Rows stand by section, in each in the order of the facts.
};

struct Fact {
  std::string_view key = {};  // Of a member in JSON. Empty: in a list, or for people alone.
  FactValue value = {};
  FactRow row = {};
};

// With its place, for people and for programs: a member `place` of its object, which a scalar is
// the `value` of; null, or `nowhere`, if it was not written.
Fact At(Fact fact, const Span& place, std::string_view nowhere = "(default)");

std::string FactsInJson(const Facts& facts);
// Label, value and place of each, but of what has a table of its own.
std::vector<std::vector<std::string>> FactRows(const Facts& facts);
// The same as a table, then the other tables.
std::string FactsInText(const Facts& facts);

}  // namespace shardinit
