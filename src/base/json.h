// Writes canonical JSON, the same bytes on every machine, and parses untrusted JSON.
//
// Keys are in the order of writing, which each schema fixes. Numbers are integers or shortest
// round-trip decimals. Text is escaped by RFC 8785. A byte of a name that is not UTF-8, which JSON
// cannot represent, becomes the four characters `\xff`.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sha256.h"

// Reads any integer type from JSON. Throws json::exception if the value is not an integer or does
// not fit. The library's own reader would truncate it or convert it out of range. Every file that
// includes nlohmann/json.hpp must include this file.
template <typename T>
requires(std::integral<T> && !std::same_as<T, bool>) struct nlohmann::adl_serializer<T, void>
    : adl_serializer<T, const void> {
  template <typename Json>
  static void from_json(const Json& in, T& value) {
    if (in.is_number_unsigned() ? !std::in_range<T>(*in.template get_ptr<const uint64_t*>())
                                : !in.is_number_integer() ||
                                      !std::in_range<T>(*in.template get_ptr<const int64_t*>())) {
      throw Json::type_error::create(302,
                                     "the value must be a whole number from " +
                                         std::to_string(std::numeric_limits<T>::min()) + " to " +
                                         std::to_string(std::numeric_limits<T>::max()) + ", not " +
                                         (in.is_number() ? in.dump() : in.type_name()),
                                     &in);
    }
    adl_serializer<T, const void>::from_json(in, value);
  }
};

namespace shardinit {

// Streams JSON into a string, so that a plan of a million tensors needs no tree. Objects and arrays
// that begin with kLines have one member per line, so `diff` works on plans and manifests.
class JsonWriter {
 public:
  enum Layout { kInline, kLines };

  JsonWriter& BeginObject(Layout layout = kInline) { return Begin('{', layout); }
  JsonWriter& EndObject() { return End('}'); }
  JsonWriter& BeginArray(Layout layout = kInline) { return Begin('[', layout); }
  JsonWriter& EndArray() { return End(']'); }
  JsonWriter& Key(std::string_view key);

  JsonWriter& Value(std::string_view text);
  JsonWriter& Value(const char* text) { return Value(std::string_view(text)); }
  JsonWriter& Value(bool value) { return Raw(value ? "true" : "false"); }
  JsonWriter& Value(std::integral auto value) { return Raw(std::to_string(value)); }
  JsonWriter& Value(double value);
  JsonWriter& Value(std::nullptr_t) { return Raw("null"); }
  // Writes a range as an array. Its elements may be ranges.
  template <typename T>
  requires(!std::convertible_to<const T&, std::string_view> &&
           requires(const T& t) { std::begin(t); }) JsonWriter& Value(const T& values) {
    BeginArray();
    for (const auto& value : values) Value(value);
    return EndArray();
  }
  JsonWriter& Raw(std::string_view json);

  // Writes a key and a value.
  template <typename T>
  JsonWriter& Member(std::string_view key, const T& value) {
    return Key(key).Value(value);
  }
  // Writes null unless `is_there`.
  template <typename T>
  JsonWriter& MemberOrNull(std::string_view key, bool is_there, const T& value) {
    return is_there ? Member(key, value) : Member(key, nullptr);
  }

  // Returns the text with a final newline. Every Begin must have its End.
  std::string Finish();
  // Returns and clears the text so far, for callers that write it to a file in steps.
  std::string Take() { return std::exchange(text_, {}); }
  size_t size() const { return text_.size(); }

 private:
  struct Level {
    Layout layout;
    bool empty = true;
  };
  JsonWriter& Begin(char bracket, Layout layout);
  JsonWriter& End(char bracket);
  void Separate();

  std::string text_;
  std::vector<Level> levels_;
  bool after_key_ = false;
};

// Returns the JSON library's message without the name of the exception.
std::string_view ComplaintOf(const std::exception& e);

// Throws json::exception unless the value is 64 hexadecimal digits.
Digest DigestIn(const nlohmann::json& hex);

// Called with each element of the arrays in the top object, when the element is complete. `top` has
// the members before it, and `key` is the array's key. Elements for which it returns true are
// dropped, so a list of a million tensors needs no tree.
using ElementVisitor = std::function<bool(const nlohmann::json& top, const std::string& key,
                                          const nlohmann::json& element)>;

// Parses untrusted JSON without duplicate keys and with at most 32 levels. Throws Error (kRefused),
// which names `path`.
nlohmann::json ParseJson(std::string_view text, const std::string& path,
                         const ElementVisitor& visit = nullptr);

}  // namespace shardinit
