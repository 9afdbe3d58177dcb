// Places in YAML text. yaml-cpp says where a token starts, or where it gave
// up; where a scalar ends, which bracket is open and what a person would call
// the mistake is found here, in the text itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/source.h"

namespace shardinit {

struct ScalarPlace {
  enum class Style { kPlain, kQuoted, kBlock };
  Style style = Style::kPlain;
  size_t offset = 0;      // After anchor and tag, at the quote if there is one.
  bool verbatim = false;  // `text` is the scalar's value, byte for byte.
  bool unterminated = false;
  std::string_view text;
  Span span;
};

class YamlText {
 public:
  YamlText(const Source& source, size_t begin);

  // yaml-cpp counts from where it started to read.
  size_t OffsetOf(int pos) const;
  std::string_view At(size_t offset) const { return text_.substr(offset); }

  Span SpanAt(size_t offset, size_t length) const;
  Span LineSpan(size_t offset) const;  // From `offset` to the end of its line.
  Span WordSpan(size_t offset) const;  // `*alias`, `&anchor`, `!tag`.
  Span TagSpan(size_t offset) const;   // The tag among the properties here.
  Span CollectionSpan(size_t offset, bool flow) const;

  // 4 for `null`, 1 for `~`, 0 if there is nothing written.
  size_t NullLength(size_t offset) const;
  ScalarPlace PlaceScalar(size_t offset, std::string_view value) const;

  // The innermost bracket in [begin, end) that nothing there closes.
  std::optional<size_t> FindOpenBracket(size_t begin, size_t end) const;

  // The first quote after `offset` that no other one closes.
  std::optional<size_t> FindOpenQuote(size_t offset) const;

 private:
  size_t LineEnd(size_t offset) const;
  // Past the quoted text or comment that starts at `offset`; else `offset`.
  size_t SkipOpaque(size_t offset) const;
  size_t SkipProperties(size_t offset) const;
  // One past the closing quote, or npos.
  size_t QuoteEnd(size_t offset) const;

  const Source& source_;
  const std::string_view text_;
  const size_t begin_;
  std::vector<uint32_t> lines_;  // Where each starts.
};

struct SyntaxProblem {
  Span span;
  std::string message;
  std::string hint;
};

// What yaml-cpp's `message` at `offset` means.
SyntaxProblem ExplainSyntax(std::string_view message, const YamlText& text, size_t offset);

}  // namespace shardinit
