// Formats numbers, tables and histograms for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

std::string Grouped(int64_t number);  // 405,853,388,800
// Returns `1 rank` or `512 ranks`; `plural` is for nouns that need more than an s.
std::string Count(int64_t number, std::string_view noun, std::string_view plural = {});
std::string InBytes(int64_t bytes);                      // 811.7 GB, powers of 1000 as for disks
std::string InTime(double seconds);                      // 7 s, 12:03 min, 26:10 h
std::string InShape(const std::vector<int64_t>& shape);  // [128256, 16384]

// The most rows of a table or list that people see. A few words of a spec can create millions.
inline constexpr size_t kMostRows = 10'000;
// Returns a line about `count` omitted items, or an empty text if `count` is 0.
std::string AndMore(size_t count, std::string_view what);

// Pads columns to their widest cell of up to 200 characters, two spaces apart; `right[c]` aligns
// column c to the right. The first row is a heading. `total` counts all rows including the heading;
// `rows` may lack rows after those that are shown.
std::string Table(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right,
                  size_t total = 0);

// Wraps text at spaces into lines that end before column `width`. All lines begin at column
// `indent`, but the first line lacks the spaces.
std::string Wrapped(std::string_view text, size_t width, size_t indent);

// Replaces numbers by `*`. A number is a whole part between separators, which are dots in a path.
// The result is a pattern that matches all tensors of a repeat.
std::string WithoutNumbers(std::string_view text, std::string_view separators = ".");
// Returns one text for texts that are equal apart from numbers: `layers.{0…125}.weight`.
std::string AsOne(const std::vector<std::string_view>& texts, std::string_view separators = ".");

// Formats ascending ranks as `0,3-5`, with `…` after `most` ranges; 0 means no limit.
std::string RanksInText(const std::vector<int64_t>& ranks, size_t most = 0);

struct BarStyle {
  size_t width;  // columns in a line
  bool blocks;   // Unicode blocks, to an eighth of a column; else `#`
};

// Returns the style for standard output: the terminal's width, or 80 columns without a terminal.
// Uses blocks if LC_ALL, LC_CTYPE or LANG specifies UTF-8.
BarStyle BarStyleOfOutput();

// Draws a line for each equal interval of [min, max]: its start, and a bar as long as its count.
std::string Bars(std::span<const int64_t> counts, double min, double max, const BarStyle& style);

}  // namespace shardinit
