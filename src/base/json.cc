#include "base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/placeholder.h"
#include "base/text.h"

namespace shardinit {
namespace {

constexpr size_t kMaxDepth = 32;

void AppendQuoted(std::string_view text, std::string* out) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  *out += '"';
  for (size_t i = 0; i < text.size(); ++i) {
    size_t end = i;
    while (end < text.size() && is_plain(text[end])) ++end;
    out->append(text, i, end - i);
    if ((i = end) == text.size()) break;
    const char c = text[i];
    if (const size_t escape = kEscaped.find(c); escape != kEscaped.npos) {
      (*out += '\\') += kLetters[escape];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      *out += fmt::format("\\u{:04x}", c);
    } else if (const Character at = CharacterAt(text, i); !at.valid) {
      *out += fmt::format("\\\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      *out += text.substr(i, static_cast<size_t>(at.size));
      i += static_cast<size_t>(at.size) - 1;
    }
  }
  *out += '"';
}

// Builds the tree itself: after each member that is an object, nlohmann's callback parser walks
// through all earlier members of its array.
class TreeBuilder : public nlohmann::json::json_sax_t {
 public:
  TreeBuilder(const std::string& path, size_t size, const ElementVisitor& visit,
              nlohmann::json* tree)
      : path_(path), size_(size), visit_(visit), tree_(*tree), next_(tree) {}

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool value) override { return Scalar(value); }
  bool number_integer(int64_t value) override { return Scalar(value); }
  bool number_unsigned(uint64_t value) override { return Scalar(value); }
  bool number_float(double value, const std::string&) override { return Scalar(value); }
  bool string(std::string& value) override { return Scalar(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // JSON has no binary values
  bool start_object(size_t) override { return Open(nlohmann::json::object()); }
  bool start_array(size_t) override { return Open(nlohmann::json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    const auto [member, is_new] = open_.back()->emplace(std::move(name), nullptr);
    if (!is_new) Refuse(fmt::format("has the key {} twice", nlohmann::json(member.key()).dump()));
    next_ = &*member;
    if (open_.size() == 1) top_key_ = member.key();
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    Refuse(position > size_ ? fmt::format("is not valid JSON: it ends at byte {}", size_)
                            : fmt::format("is not valid JSON (byte {} of {})", position, size_));
  }

 private:
  [[noreturn]] void Refuse(const std::string& what) {
    throw Error(ExitCode::kRefused, fmt::format("`{}` {}", path_, what));
  }

  void Put(nlohmann::json value) {
    if (!open_.empty() && open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      next_ = &open_.back()->back();
    } else {
      *next_ = std::move(value);
    }
  }

  bool Complete() {
    if (visit_ && open_.size() == 2 && open_.back()->is_array()) {
      auto& elements = open_.back()->get_ref<nlohmann::json::array_t&>();
      if (visit_(tree_, top_key_, elements.back())) elements.pop_back();
    }
    return true;
  }

  bool Scalar(nlohmann::json value) {
    Put(std::move(value));
    return Complete();
  }

  bool Open(nlohmann::json empty) {
    if (open_.size() == kMaxDepth) Refuse(fmt::format("is nested over {} levels", kMaxDepth));
    Put(std::move(empty));
    open_.push_back(next_);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return Complete();
  }

  const std::string& path_;
  const size_t size_;
  const ElementVisitor& visit_;
  nlohmann::json& tree_;
  std::string top_key_;
  nlohmann::json* next_;  // where the next value goes, except in an array
  // Objects and arrays. An open one does not move within its container.
  std::vector<nlohmann::json*> open_;
};

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
  // `-0` would be read as an integer, which has no negative zero.
  return Raw(value == 0 && std::signbit(value) ? "-0.0" : fmt::format("{}", value));
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

std::string_view ComplaintOf(const std::exception& e) {
  const std::string_view what = e.what();  // `[json.exception.type_error.302] type must be …`
  return what.substr(what.find(' ') + 1);
}

Digest DigestIn(const nlohmann::json& hex) {
  Digest digest;
  const auto text = hex.get<std::string>();
  if (FromHex(text, &digest)) return digest;
  throw nlohmann::json::type_error::create(
      302, fmt::format("a digest must be 64 hexadecimal digits, not {}", Quote(text)), &hex);
}

nlohmann::json ParseJson(std::string_view text, const std::string& path,
                         const ElementVisitor& visit) {
  if (const Placeholder* placeholder = FindPlaceholder(text)) {
    throw Error(ExitCode::kRefused, fmt::format("`{}` is {}", path, placeholder->name),
                fmt::format(fmt::runtime(placeholder->hint), path));
  }
  nlohmann::json tree;
  TreeBuilder builder(path, text.size(), visit, &tree);
  nlohmann::json::sax_parse(text, &builder);
  return tree;
}

}  // namespace shardinit
