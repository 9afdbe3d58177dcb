// Looks up values in lists, and rows in tables by name. A table is a range of structs with a
// `name`, or of pointers to them.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace shardinit {

template <typename List, typename Value>
bool Contains(const List& list, const Value& value) {
  return std::ranges::find(list, value) != std::ranges::end(list);
}

template <typename Row>
const auto& RowBehind(const Row& row) {
  if constexpr (std::is_pointer_v<Row>) {
    return *row;
  } else {
    return row;
  }
}

// Returns the first row of that name, or null.
template <typename Table>
auto FindNamed(const Table& table, std::string_view name)
    -> decltype(&RowBehind(*std::begin(table))) {
  for (const auto& row : table) {
    if (RowBehind(row).name == name) return &RowBehind(row);
  }
  return nullptr;
}

template <typename Table>
std::vector<std::string> NamesOf(const Table& table) {
  std::vector<std::string> names;
  for (const auto& row : table) names.emplace_back(RowBehind(row).name);
  return names;
}

}  // namespace shardinit
