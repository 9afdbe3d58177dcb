// Parses a text that is one number.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace shardinit {

// YAML's spellings of numbers that are not finite, after any sign.
inline constexpr std::string_view kNotFinite[] = {".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF"};

// Parses all of `text` as std::from_chars does. Returns nothing if it is not a number or T cannot
// hold it.
template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return stop == end && error == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace shardinit
