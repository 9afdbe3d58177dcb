#include "spec/yaml_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace shardinit {
namespace {

constexpr size_t kNone = std::string_view::npos;
constexpr std::string_view kBlank = " \t\r\n";
// These end a word (anchor, alias, tag).
constexpr std::string_view kWordEnd = " \t\r\n,[]{}";

}  // namespace

YamlText::YamlText(const Source& source, size_t begin)
    : source_(source), text_(source.text), begin_(begin) {
  lines_.push_back(0);
  for (size_t i = text_.find('\n'); i != kNone; i = text_.find('\n', i + 1))
    lines_.push_back(static_cast<uint32_t>(i + 1));
}

size_t YamlText::OffsetOf(int pos) const {
  return std::min(begin_ + static_cast<size_t>(std::max(pos, 0)), text_.size());
}

Span YamlText::SpanAt(size_t offset, size_t length) const {
  const size_t line = std::ranges::upper_bound(lines_, offset) - lines_.begin();
  return {&source_, static_cast<uint32_t>(line),
          static_cast<uint32_t>(offset - lines_[line - 1] + 1), static_cast<uint32_t>(length)};
}

size_t YamlText::LineEnd(size_t offset) const {
  const auto next = std::ranges::upper_bound(lines_, offset);
  if (next == lines_.end()) return text_.size();
  size_t end = *next - 1;
  if (end > offset && text_[end - 1] == '\r') --end;
  return end;
}

Span YamlText::LineSpan(size_t offset) const {
  size_t end = LineEnd(offset);
  while (end > offset && kBlank.find(text_[end - 1]) != kNone) --end;
  return SpanAt(offset, std::max<size_t>(end - offset, 1));
}

Span YamlText::WordSpan(size_t offset) const {
  const size_t end = std::min(text_.find_first_of(kWordEnd, offset), text_.size());
  return SpanAt(offset, std::max<size_t>(end - offset, 1));
}

Span YamlText::TagSpan(size_t offset) const {
  while (offset < text_.size() && text_[offset] == '&') {
    offset = std::min(text_.find_first_of(kWordEnd, offset), text_.size());
    offset = std::min(text_.find_first_not_of(kBlank, offset), text_.size());
  }
  return WordSpan(offset);
}

Span YamlText::CollectionSpan(size_t offset, bool flow) const {
  offset = SkipProperties(offset);
  if (!flow) return WordSpan(offset);
  // Extend to the matching bracket if it is on the same line.
  const size_t end = LineEnd(offset);
  int depth = 0;
  for (size_t i = offset; i < end; ++i) {
    const char c = text_[i];
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && --depth == 0) return SpanAt(offset, i + 1 - offset);
    // A single pair in a list, `[a: b]`, does not have its own brackets.
    if (depth == 0) return WordSpan(offset);
    if (i - offset > 4096) break;
  }
  return SpanAt(offset, 1);
}

size_t YamlText::NullLength(size_t offset) const {
  for (std::string_view word : {"null", "Null", "NULL", "~"}) {
    if (At(offset).starts_with(word)) return word.size();
  }
  return 0;
}

size_t YamlText::SkipProperties(size_t offset) const {
  while (offset < text_.size()) {
    const char c = text_[offset];
    if (c == '&' || c == '!') {
      offset = std::min(text_.find_first_of(kWordEnd, offset), text_.size());
    } else if (c == '#') {
      offset = std::min(text_.find('\n', offset), text_.size());
    } else {
      const size_t next = std::min(text_.find_first_not_of(kBlank, offset), text_.size());
      if (next == offset) break;
      offset = next;
    }
  }
  return offset;
}

size_t YamlText::QuoteEnd(size_t offset) const {
  const char quote = text_[offset];
  for (size_t i = offset + 1; i < text_.size(); ++i) {
    if (quote == '"' && text_[i] == '\\') {
      ++i;
    } else if (text_[i] == quote) {
      if (quote == '"' || !At(i + 1).starts_with('\'')) return i + 1;
      ++i;
    }
  }
  return kNone;
}

ScalarPlace YamlText::PlaceScalar(size_t offset, std::string_view value) const {
  const char first = offset < text_.size() ? text_[offset] : '\0';
  if (first == '&' || first == '!') offset = SkipProperties(offset);
  ScalarPlace place;
  place.offset = offset;
  const char c = offset < text_.size() ? text_[offset] : '\0';
  const size_t line_end = LineEnd(offset);
  size_t end = offset + value.size();
  if (c == '"' || c == '\'') {
    place.style = ScalarPlace::Style::kQuoted;
    end = QuoteEnd(offset);
    place.unterminated = end == kNone;
    if (!place.unterminated) place.text = text_.substr(offset + 1, end - offset - 2);
  } else if (c == '|' || c == '>') {
    place.style = ScalarPlace::Style::kBlock;
    end = line_end;
  } else {
    place.text = At(offset).substr(0, value.size());
  }
  place.verbatim =
      place.style != ScalarPlace::Style::kBlock && !place.unterminated && place.text == value;
  end = std::min(end, line_end);
  place.span = SpanAt(offset, end > offset ? end - offset : 1);
  return place;
}

size_t YamlText::SkipOpaque(size_t offset) const {
  constexpr std::string_view kBefore = " \t\r\n[{,:-?";
  const bool starts = offset == 0 || kBefore.find(text_[offset - 1]) != kNone;
  const char c = text_[offset];
  if (starts && c == '#') return std::min(text_.find('\n', offset), text_.size());
  if (starts && (c == '"' || c == '\'')) return QuoteEnd(offset);
  return offset;
}

std::optional<size_t> YamlText::FindOpenBracket(size_t begin, size_t end) const {
  std::vector<size_t> open;
  for (size_t i = begin; i < end;) {
    const size_t next = SkipOpaque(i);
    if (next != i) {
      i = next;
      continue;
    }
    const char c = text_[i];
    if (c == '[' || c == '{') open.push_back(i);
    if ((c == ']' || c == '}') && !open.empty()) open.pop_back();
    ++i;
  }
  if (open.empty()) return std::nullopt;
  return open.back();
}

std::optional<size_t> YamlText::FindOpenQuote(size_t offset) const {
  for (size_t i = offset; i < text_.size();) {
    const size_t next = SkipOpaque(i);
    if (next == kNone) return i;
    i = next == i ? i + 1 : next;
  }
  return std::nullopt;
}

namespace {

// Finds `name:example` in the line before the line at `start`. Without a space it is plain text,
// which the next key continues.
std::optional<SyntaxProblem> FindGluedKey(const YamlText& text, size_t start) {
  if (start == 0) return {};
  const std::string_view all = text.At(0);
  const size_t before = all.rfind('\n', start - 1 > 0 ? start - 2 : 0);
  const size_t begin = before == kNone || start < 2 ? 0 : before + 1;
  const std::string_view line = all.substr(begin, start - 1 - begin);
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  const size_t colon = line.find(':');
  if (colon == kNone || colon + 1 >= line.size() || kBlank.find(line[colon + 1]) != kNone)
    return {};
  if (colon == indent || line.substr(indent, colon - indent).find_first_of(" \t#\"'{[") != kNone)
    return {};
  const std::string_view key = line.substr(indent, colon - indent);
  return SyntaxProblem{text.SpanAt(begin + indent, colon + 1 - indent),
                       fmt::format("a space is missing after `{}:`", key),
                       fmt::format("write `{}: {}`", key, line.substr(colon + 1))};
}

}  // namespace

SyntaxProblem ExplainSyntax(std::string_view message, const YamlText& text, size_t offset) {
  const Span here = text.SpanAt(offset, 1);
  const std::string_view rest = text.At(offset);
  const size_t start = offset + 1 - here.column;
  const std::string_view line = text.At(start);
  const size_t indent = std::min(line.find_first_not_of(" \t"), line.size());
  if (const size_t tab = line.substr(0, indent).find('\t'); tab != kNone) {
    return {text.SpanAt(start + tab, 1), "a tab cannot indent YAML", "use spaces"};
  }
  const auto has = [&](std::string_view part) { return message.find(part) != kNone; };
  const std::string_view character = rest.substr(0, rest.empty() ? 0 : CharacterAt(rest, 0).size);
  constexpr uint32_t kLongestKey = 1024;  // YAML 1.2, section 7.4
  if (has("illegal map value") && here.column > kLongestKey) {
    return {here, fmt::format("a key must end within {} bytes", kLongestKey),
            "is a line break missing?"};
  }
  if (has("illegal map value")) {
    if (const auto glued = FindGluedKey(text, start)) return *glued;
    return {here, "a `:` is not allowed here",
            "indent the key like its neighbours; text that contains `: ` needs quotes"};
  }
  if (has("referenced anchor is not defined")) {
    return {text.WordSpan(offset), "this alias names nothing above it",
            "text that starts with `*` needs quotes"};
  }
  if (has("unknown token")) {
    return {here, fmt::format("text cannot start with {}", Quote(character)), "put it in quotes"};
  }
  if (has("illegal flow end")) {
    return {here, fmt::format("{} closes nothing", Quote(character)), {}};
  }
  if (has("illegal block entry")) {
    return {here, "a list item cannot start here",
            "put it on its own line, or write the list as `[a, b]`"};
  }
  if (has("unknown escape character") || has("hex number") || has("invalid unicode")) {
    return {here, "unknown escape in a double-quoted string",
            "in single quotes `\\` is an ordinary character"};
  }
  if (has("directive") || has("YAML version") || has("YAML major version")) {
    return {text.LineSpan(offset), "YAML directives are not allowed in a spec", "remove the line"};
  }
  if (has("end of map") || has("end of seq")) {
    return {text.LineSpan(offset), "this does not belong to the text before it",
            "check the indentation; text after a closing quote or bracket needs its own line"};
  }
  return {here, fmt::format("invalid YAML: {}", message), {}};
}

}  // namespace shardinit
