#include "base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace shardinit {
namespace {

constexpr int kMaxDepth = 32;

void AppendQuoted(std::string_view text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': *out += "\\\""; break;
      case '\\': *out += "\\\\"; break;
      case '\b': *out += "\\b"; break;
      case '\f': *out += "\\f"; break;
      case '\n': *out += "\\n"; break;
      case '\r': *out += "\\r"; break;
      case '\t': *out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          *out += fmt::format("\\u{:04x}", c);
        } else {
          *out += c;
        }
    }
  }
  *out += '"';
}

}  // namespace

void JsonWriter::Separate() {
  if (std::exchange(after_key_, false) || levels_.empty()) return;
  Level& level = levels_.back();
  if (!std::exchange(level.empty, false)) text_ += level.layout == kInline ? ", " : ",";
  if (level.layout == kLines) {
    text_ += '\n';
    text_.append(levels_.size() * 1, ' ');
  }
}

JsonWriter& JsonWriter::Begin(char bracket, Layout layout) {
  Separate();
  text_ += bracket;
  levels_.push_back({layout});
  return *this;
}

JsonWriter& JsonWriter::End(char bracket) {
  const Level level = levels_.back();
  levels_.pop_back();
  if (level.layout == kLines && !level.empty) {
    text_ += '\n';
    text_.append(levels_.size(), ' ');
  }
  text_ += bracket;
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Separate();
  AppendQuoted(key, &text_);
  text_ += ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::Value(std::string_view text) {
  Separate();
  AppendQuoted(text, &text_);
  return *this;
}

JsonWriter& JsonWriter::Value(double value) {
  Check(value - value == 0, "JSON has no NaN or infinity");
  // `-0` would be read back as an integer, which has no sign of zero.
  return Raw(value == 0 && std::signbit(value) ? "-0.0" : fmt::format("{}", value));
}

JsonWriter& JsonWriter::Integer(int64_t value) {
  Separate();
  text_ += fmt::format_int(value).str();
  return *this;
}

JsonWriter& JsonWriter::Value(std::span<const int64_t> values) {
  BeginArray();
  for (const int64_t value : values) Integer(value);
  return EndArray();
}

JsonWriter& JsonWriter::Raw(std::string_view json) {
  Separate();
  text_ += json;
  return *this;
}

std::string JsonWriter::Finish() {
  Check(levels_.empty(), "unfinished JSON");
  text_ += '\n';
  return Take();
}

nlohmann::json ParseJson(std::string_view text, const std::string& path) {
  using nlohmann::json;
  std::vector<std::set<std::string>> keys;
  const json::parser_callback_t guard = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) {
      throw Error(ExitCode::kRefused, fmt::format("`{}` is nested over {} levels", path, kMaxDepth));
    }
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(parsed.get_ref<const std::string&>()).second) {
      throw Error(ExitCode::kRefused, fmt::format("`{}` has the key {} twice", path, parsed.dump()));
    }
    return true;
  };
  try {
    return json::parse(text, guard);
  } catch (const json::exception& e) {
    throw Error(ExitCode::kRefused, fmt::format("`{}` is not valid JSON (byte {} of {})", path,
                                                [&]() -> size_t {
                                                  auto* at = dynamic_cast<const json::parse_error*>(&e);
                                                  return at ? at->byte : 0;
                                                }(),
                                                text.size()));
  }
}

}  // namespace shardinit
