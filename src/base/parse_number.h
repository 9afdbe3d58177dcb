// Reads a text that is one number.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace shardinit {

// These texts are what YAML has for numbers that are not finite, behind a sign.
inline constexpr std::string_view kNotFinite[] = {".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF"};

// Returns the number that all of the text is, as std::from_chars reads it; nothing if there is none
// or T cannot hold it.
template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return stop == end && error == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace shardinit
