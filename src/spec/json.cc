#include "spec/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/text.h"

namespace shardinit {
namespace {

constexpr std::string_view kDigits = "0123456789";

// Words that Python prints, and their JSON equivalents.
constexpr std::pair<std::string_view, std::string_view> kPythonWords[] = {
    {"True", "true"}, {"False", "false"}, {"None", "null"}};

// Thrown where the text stops being JSON.
struct NoJson {
  size_t offset, length;
  std::string message, hint;
};

class JsonReader {
 public:
  JsonReader(const Source& source, NodeStore& store)
      : source_(source), text_(source.text), store_(store) {}

  const Node* Read() {
    const Node* root = ReadValue(1);
    SkipSpace();
    if (at_ < text_.size()) Fail("this follows the end of the JSON value");
    return root;
  }

 private:
  [[noreturn]] void Fail(std::string message, std::string hint = {}) const {
    throw NoJson{std::min(at_, text_.size()), 1, std::move(message), std::move(hint)};
  }

  void SkipSpace() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) {
      if (text_[at_++] != '\n') continue;
      ++line_;
      line_start_ = at_;
    }
  }

  char Next() {
    SkipSpace();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  Node* NewNode(Node::Kind kind, size_t begin) {
    if (!store_.Count(1))
      Fail(fmt::format("the file has more than {} values", NodeStore::kMostNodes));
    Node* node =
        store_.New(kind, {&source_, line_, static_cast<uint32_t>(begin - line_start_ + 1), 1});
    return node;
  }

  const Node* ReadValue(int depth) {
    if (depth > NodeStore::kDeepest)
      Fail(fmt::format("nested more than {} levels deep", NodeStore::kDeepest));
    switch (Next()) {
      case '\0':
        Fail(at_ < text_.size() ? "a value is missing here"
                                : "the text ends where a value is expected");
      case '{':
        return ReadCollection(Node::Kind::kMap, '}', depth);
      case '[':
        return ReadCollection(Node::Kind::kSequence, ']', depth);
      case '"':
        return ReadString();
      default:
        return ReadWord();
    }
  }

  const Node* ReadCollection(Node::Kind kind, char close, int depth) {
    Node* node = NewNode(kind, at_);
    const size_t open = at_++;
    std::unordered_map<std::string_view, const Node*> keys;
    for (bool first = true; Next() != close; first = false) {
      if (at_ >= text_.size())
        throw NoJson{open, 1, fmt::format("`{}` is never closed", text_[open]), {}};
      if (!first) {
        if (Next() != ',') Fail("a comma is missing before this");
        ++at_;
        if (Next() == close) Fail("a value is expected after the comma", "remove the comma");
      }
      const Node* key = nullptr;
      if (kind == Node::Kind::kMap) {
        if (Next() != '"') Fail("a key in double quotes is due here");
        key = ReadString();
        if (!keys.emplace(key->text, key).second) {
          throw NoJson{at_ - key->span.length, key->span.length,
                       fmt::format("key {} is given twice", Quote(key->text)),
                       "remove one of them"};
        }
        if (Next() != ':') Fail("a colon is expected after the key");
        ++at_;
      }
      const Node* value = ReadValue(depth + 1);
      node->entries.push_back({key, value});
      node->Enclose(*value);
      node->size += value->size + (key != nullptr ? 1 : 0);
    }
    ++at_;
    return node;
  }

  const Node* ReadString() {
    Node* node = NewNode(Node::Kind::kScalar, at_);
    const size_t begin = at_++;
    std::string decoded;
    for (;; ++at_) {
      if (at_ >= text_.size() || text_[at_] == '\n')
        throw NoJson{begin, 1, "this quote is never closed", {}};
      if (text_[at_] == '"') break;
      if (text_[at_] == '\\') {
        ReadEscape(decoded);
      } else {
        decoded += text_[at_];
      }
    }
    const std::string_view between = text_.substr(begin + 1, at_ - begin - 1);
    ++at_;
    node->quoted = true;
    node->verbatim = between == decoded;
    node->text = node->verbatim ? between : store_.Keep(std::move(decoded));
    node->span.length = static_cast<uint32_t>(at_ - begin);
    return node;
  }

  // Reads an escape from its backslash to its last byte.
  void ReadEscape(std::string& out) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char letter = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (const size_t i = kLetters.find(letter); letter != '\0' && i != kLetters.npos) {
      out += kMeanings[i];
      ++at_;
      return;
    }
    if (letter != 'u') Fail("JSON has no such escape");
    char32_t code = ReadUnit(at_ + 2);
    size_t length = 6;
    if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_ + 6, 2) == "\\u") {
      const char32_t low = ReadUnit(at_ + 8);
      if (low >= 0xdc00 && low < 0xe000) {
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        length = 12;
      }
    }
    if (code >= 0xd800 && code < 0xe000) code = 0xfffd;  // half of a surrogate pair
    AppendUtf8(code, out);
    at_ += length - 1;
  }

  char32_t ReadUnit(size_t offset) const {
    char32_t code = 0;
    for (size_t i = offset; i < offset + 4; ++i) {
      const size_t digit = i < text_.size()
                               ? std::string_view("0123456789abcdef").find(text_[i] | 0x20)
                               : text_.npos;
      if (digit == text_.npos || (text_[i] < 'A' && digit > 9))
        Fail("four hexadecimal digits are expected after `\\u`");
      code = code << 4 | static_cast<char32_t>(digit);
    }
    return code;
  }

  static void AppendUtf8(char32_t code, std::string& out) {
    if (code < 0x80) {
      out += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr unsigned char kFirst[] = {0, 0xc0, 0xe0, 0xf0};
    out += static_cast<char>(kFirst[more] | (code >> (6 * more)));
    for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f));
  }

  const Node* ReadWord() {
    const size_t begin = at_;
    const size_t end = std::min(text_.find_first_of(" \t\r\n,:]}[{\"", begin), text_.size());
    const std::string_view word = text_.substr(begin, end - begin);
    const bool is_known = word == "true" || word == "false" || word == "null" || word == "NaN" ||
                          word == "Infinity" || word == "-Infinity";
    if (!is_known && !IsJsonNumber(word)) {
      throw NoJson{begin, word.size(),
                   word.empty() ? "a value is missing here"
                                : fmt::format("{} is not a JSON value", Quote(word)),
                   HintForWord(word)};
    }
    Node* node = NewNode(word == "null" ? Node::Kind::kNull : Node::Kind::kScalar, begin);
    node->verbatim = true;
    if (!node->IsNull()) node->text = word;
    node->span.length = static_cast<uint32_t>(word.size());
    at_ = end;
    return node;
  }

  static std::string HintForWord(std::string_view word) {
    if (word.empty()) return {};
    if (word.find_first_of("0123456789+-.") == 0) {
      return "numbers look like `-1`, `0.5` or `1e-5`";
    }
    for (const auto& [python, own] : kPythonWords) {
      if (word == python) return fmt::format("write `{}`", own);
    }
    return "text needs double quotes";
  }

  static bool IsJsonNumber(std::string_view word) {
    const auto digits = [&] {
      const size_t count = std::min(word.find_first_not_of(kDigits), word.size());
      word.remove_prefix(count);
      return count > 0;
    };
    if (word.starts_with('-')) word.remove_prefix(1);
    if (word.size() > 1 && word[0] == '0' && kDigits.find(word[1]) != kDigits.npos) return false;
    if (!digits()) return false;
    if (word.starts_with('.')) {
      word.remove_prefix(1);
      if (!digits()) return false;
    }
    if (word.starts_with('e') || word.starts_with('E')) {
      word.remove_prefix(1);
      if (word.starts_with('+') || word.starts_with('-')) word.remove_prefix(1);
      if (!digits()) return false;
    }
    return word.empty();
  }

  const Source& source_;
  const std::string_view text_;
  NodeStore& store_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  size_t line_start_ = 0;
};

}  // namespace

const Node* ParseJsonTree(const Source& source, NodeStore& store, Diagnostics& diagnostics) {
  if (const std::optional<BadText> bad = FindBadText(source.text)) {
    return diagnostics.Error(SpanIn(source, bad->offset, 1), bad->what, "JSON is plain UTF-8 text");
  }
  try {
    return JsonReader(source, store).Read();
  } catch (const NoJson& problem) {
    return diagnostics.Error(SpanIn(source, problem.offset, problem.length), problem.message,
                             problem.hint);
  }
}

}  // namespace shardinit
