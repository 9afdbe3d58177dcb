#include "report/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/colour.h"
#include "base/json.h"
#include "report/text.h"

namespace shardinit {
namespace {

void WriteScalar(const FactScalar& scalar, JsonWriter& out) {
  std::visit([&](const auto& value) { out.Value(value); }, scalar);
}

void WriteMembers(const Facts& facts, JsonWriter& out);

// Writes the values of facts in JSON.
struct JsonOf {
  JsonWriter& out;

  void operator()(const FactScalar& scalar) const { WriteScalar(scalar, out); }
  void operator()(const Facts& members) const {
    WriteMembers(members, out.BeginObject());
    out.EndObject();
  }
  void operator()(const FactList& list) const {
    const bool scalars = std::all_of(list.items.begin(), list.items.end(), [](const Fact& item) {
      return std::holds_alternative<FactScalar>(item.value);
    });
    out.BeginArray(scalars ? JsonWriter::kInline : JsonWriter::kLines);
    for (const Fact& item : list.items) std::visit(*this, item.value);
    out.EndArray();
  }
  void operator()(const FactTable& table) const { WriteTable(table, out); }
};

void WriteMembers(const Facts& facts, JsonWriter& out) {
  for (const Fact& fact : facts) {
    if (!fact.key.empty()) std::visit(JsonOf{out.Key(fact.key)}, fact.value);
  }
}

// Returns a scalar as people see it.
struct TextOf {
  std::string operator()(std::nullptr_t) const { return "none"; }
  std::string operator()(bool value) const { return value ? "yes" : "no"; }
  std::string operator()(int64_t value) const { return Grouped(value); }
  std::string operator()(uint64_t value) const { return Grouped(static_cast<int64_t>(value)); }
  std::string operator()(double value) const { return fmt::format("{:.6g}", value); }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(const std::vector<int64_t>& value) const { return InShape(value); }
};

using Rows = std::vector<std::vector<std::string>>;

bool HasRow(const Fact& fact) { return !fact.row.label.empty() || !fact.row.text.empty(); }

std::string RowText(const Fact& fact) {
  const auto* scalar = std::get_if<FactScalar>(&fact.value);
  const bool own = fact.row.text.empty() && scalar != nullptr;
  return own ? std::visit(TextOf(), *scalar) : fact.row.text;
}

void AddRows(const Fact& fact, Rows* rows) {
  if (const auto* list = std::get_if<FactList>(&fact.value)) {
    for (const Fact& item : list->items) AddRows(item, rows);
  } else if (HasRow(fact) && !std::holds_alternative<FactTable>(fact.value)) {
    rows->push_back({fact.row.label, RowText(fact), fact.row.place});
  }
}

std::vector<const Fact*> BySection(const Facts& facts) {
  std::vector<const Fact*> sorted;
  for (const Fact& fact : facts) sorted.push_back(&fact);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Fact* a, const Fact* b) { return a->row.section < b->row.section; });
  return sorted;
}

}  // namespace

Fact At(Fact fact, const Span& place, std::string_view nowhere) {
  const bool known = place.source != nullptr;
  fact.row.place = known ? PlaceOf(place) : nowhere;
  if (std::holds_alternative<FactScalar>(fact.value)) {
    if (HasRow(fact)) fact.row.text = RowText(fact);
    fact.value = Facts{{"value", std::move(fact.value)}};
  }
  std::get<Facts>(fact.value).push_back({"place", known ? FactScalar(fact.row.place) : nullptr});
  return fact;
}

void WriteTable(const FactTable& table, JsonWriter& out) {
  out.BeginArray(JsonWriter::kLines);
  for (size_t row = 0; row < table.rows; ++row) {
    WriteMembers(table.row(row), out.BeginObject());
    out.EndObject();
  }
  out.EndArray();
}

std::string TableInText(const FactTable& table) {
  Rows rows = {table.labels};
  for (size_t row = 0; row < std::min(table.rows, kMostRows); ++row) {
    const Facts facts = table.row(row);
    rows.emplace_back();
    for (size_t c = 0; c < table.labels.size(); ++c) rows.back().push_back(RowText(facts[c]));
  }
  std::vector<bool> right = table.right;
  right.resize(table.labels.size());
  return Table(rows, right, 1 + table.rows);
}

std::string FactsInJson(const Facts& facts) {
  JsonWriter out;
  WriteMembers(facts, out.BeginObject(JsonWriter::kLines));
  out.EndObject();
  return out.Finish();
}

std::vector<std::vector<std::string>> FactRows(const Facts& facts) {
  Rows rows;
  for (const Fact* fact : BySection(facts)) AddRows(*fact, &rows);
  return rows;
}

std::string FactsInText(const Facts& facts) {
  std::string tables;
  for (const Fact* fact : BySection(facts)) {
    if (const auto* table = std::get_if<FactTable>(&fact->value)) {
      tables += fmt::format("\n{}\n\n{}", fact->row.text, TableInText(*table));
    }
  }
  Rows rows = FactRows(facts);
  for (auto& row : rows) {
    row[0] = Paint(Role::kStrong, row[0]);
    row[2] = Paint(Role::kFaint, row[2]);
  }
  return Table(rows, {false, false, false}) + tables;
}

}  // namespace shardinit
