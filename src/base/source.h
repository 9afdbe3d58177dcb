// Keeps the text of a spec file and places in it, so that every later stage can report where the
// user wrote a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardinit {

struct Source {
  std::string name;  // as the user typed it, or as an `include` names it
  std::string text;
};

// A place in a Source. Lines and columns start at 1. Columns and lengths count bytes; the renderer
// converts them to characters.
struct Span {
  const Source* source = nullptr;  // owned by Diagnostics; null: no place
  uint32_t line = 0;
  uint32_t column = 0;
  uint32_t length = 1;
};

// A value, and where the user wrote it.
template <typename T>
struct Located {
  T value{};
  Span span;
};

template <typename T>
std::vector<T> ValuesOf(const std::vector<Located<T>>& located) {
  std::vector<T> values;
  for (const Located<T>& one : located) values.push_back(one.value);
  return values;
}

}  // namespace shardinit
