// Finds positions in YAML text. yaml-cpp only reports where a token starts, or where it gave up.
// YamlText searches the text for the end of a scalar, the unclosed bracket, and the actual mistake.
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
  size_t offset = 0;      // after anchor and tag; at the quote if there is one
  bool verbatim = false;  // `text` is the scalar's value, byte for byte
  bool unterminated = false;
  std::string_view text;
  Span span;
};

class YamlText {
 public:
  YamlText(const Source& source, size_t begin);

  // Converts a position of yaml-cpp, which is relative to where it started reading.
  size_t OffsetOf(int pos) const;
  std::string_view At(size_t offset) const { return text_.substr(offset); }

  Span SpanAt(size_t offset, size_t length) const;
  Span LineSpan(size_t offset) const;  // from `offset` to the end of its line
  Span WordSpan(size_t offset) const;  // `*alias`, `&anchor`, `!tag`
  Span TagSpan(size_t offset) const;   // the tag among the properties at `offset`
  Span CollectionSpan(size_t offset, bool flow) const;

  // Returns 4 for `null`, 1 for `~`, 0 for an empty value.
  size_t NullLength(size_t offset) const;
  ScalarPlace PlaceScalar(size_t offset, std::string_view value) const;

  // Finds the innermost bracket in [begin, end) that is not closed there.
  std::optional<size_t> FindOpenBracket(size_t begin, size_t end) const;

  // Finds the first quote after `offset` that has no closing quote.
  std::optional<size_t> FindOpenQuote(size_t offset) const;

 private:
  size_t LineEnd(size_t offset) const;
  // Skips the quoted text or comment that starts at `offset`. Returns `offset` if neither starts
  // there.
  size_t SkipOpaque(size_t offset) const;
  size_t SkipProperties(size_t offset) const;
  // Returns the offset one past the closing quote, or npos.
  size_t QuoteEnd(size_t offset) const;

  const Source& source_;
  const std::string_view text_;
  const size_t begin_;
  std::vector<uint32_t> lines_;  // the offset of each line
};

struct SyntaxProblem {
  Span span;
  std::string message;
  std::string hint;
};

// Explains yaml-cpp's `message` at `offset`.
SyntaxProblem ExplainSyntax(std::string_view message, const YamlText& text, size_t offset);

}  // namespace shardinit
