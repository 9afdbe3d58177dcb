// Draws a histogram in a terminal.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace shardinit {

struct BarStyle {
  size_t width;  // columns for a line
  bool blocks;   // Unicode's blocks, to an eighth of a column; else `#`
};

// Returns the style of standard output: the terminal's width, or 80 columns if it is no terminal,
// and blocks where LC_ALL, LC_CTYPE or LANG say UTF-8.
BarStyle BarStyleOfOutput();

// Draws a line for each equal part of [min, max]: where it starts, and a bar as long as its count.
std::string Bars(std::span<const int64_t> counts, double min, double max, const BarStyle& style);

}  // namespace shardinit
