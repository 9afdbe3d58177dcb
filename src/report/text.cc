#include "report/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "base/colour.h"
#include "base/parse_number.h"
#include "base/text.h"

namespace shardinit {
namespace {

// Returns the number of terminal columns that the text takes.
size_t WidthOf(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size();) {
    if (const size_t code = CodeSize(text.substr(i)); code > 0) {
      i += code;
      continue;
    }
    const Character c = CharacterAt(text, i);
    width += static_cast<size_t>(DisplayWidth(c.code));
    i += static_cast<size_t>(c.size);
  }
  return width;
}

bool IsNumber(std::string_view text) {
  const size_t digit = text.starts_with('-') || text.starts_with('+');
  if (digit == text.size() || text[digit] < '0' || text[digit] > '9') return false;
  return ParseNumber<double>(text.substr(text[0] == '+' ? 1 : 0)).has_value();
}

// Calls `f` with each part and the separator after it, which is empty at the end.
template <typename F>
void ForEachPart(std::string_view text, std::string_view separators, F f) {
  while (true) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    f(text.substr(0, end), text.substr(end, 1));
    if (end == text.size()) return;
    text.remove_prefix(end + 1);
  }
}

// Returns `{0…125}`, `{0, 2, …, 124}` or `{0…2, 5}`. If a number is not whole, returns only the
// first and the last.
std::string InBraces(const std::vector<std::string_view>& numbers) {
  std::vector<int64_t> sorted;
  for (const std::string_view text : numbers) {
    const auto number = ParseNumber<int64_t>(text);
    const bool whole = number && fmt::format_int(*number).str() == text;
    if (!whole) return fmt::format("{{{}…{}}}", numbers.front(), numbers.back());
    sorted.push_back(*number);
  }
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  if (sorted.size() == 1) return std::string(numbers[0]);
  const int64_t step = sorted[1] - sorted[0];
  const auto uneven = std::adjacent_find(sorted.begin(), sorted.end(),
                                         [&](int64_t a, int64_t b) { return b - a != step; });
  if (uneven == sorted.end() && step > 1 && sorted.size() > 3) {
    return fmt::format("{{{}, {}, …, {}}}", sorted[0], sorted[1], sorted.back());
  }
  constexpr size_t kMostRanges = 8;
  std::vector<std::string> ranges;
  for (size_t i = 0; i < sorted.size();) {
    size_t last = i;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
    if (ranges.size() == kMostRanges) {
      ranges.push_back(fmt::format("…, {}", sorted.back()));
      break;
    }
    ranges.push_back(
        last == i ? fmt::to_string(sorted[i])
                  : fmt::format("{}{}{}", sorted[i], last == i + 1 ? ", " : "…", sorted[last]));
    i = last + 1;
  }
  return fmt::format("{{{}}}", fmt::join(ranges, ", "));
}

}  // namespace

std::string Grouped(int64_t number) {
  std::string digits = fmt::format_int(number).str();
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string Count(int64_t number, std::string_view noun, std::string_view plural) {
  if (number == 1) return fmt::format("1 {}", noun);
  return plural.empty() ? fmt::format("{} {}s", Grouped(number), noun)
                        : fmt::format("{} {}", Grouped(number), plural);
}

std::string InBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string InTime(double seconds) {
  const auto s = static_cast<int64_t>(std::min(std::round(seconds), 9e18));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{}:{:02} min", s / 60, s % 60);
  return fmt::format("{}:{:02} h", s / 3600, s / 60 % 60);
}

std::string InShape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string Table(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right,
                  size_t total) {
  // A wider cell shifts only its own row, instead of padding all other rows.
  constexpr size_t kWidest = 200;
  std::vector<size_t> widths(right.size());
  std::vector<std::vector<std::string>> shown(
      rows.begin(), rows.begin() + std::ssize(rows) -
                        std::max<int64_t>(0, std::ssize(rows) - 1 - int64_t{kMostRows}));
  for (auto& row : shown) std::ranges::transform(row, row.begin(), EscapePainted);
  for (const auto& row : shown) {
    for (size_t c = 0; c < row.size(); ++c) {
      if (const size_t width = WidthOf(row[c]); width <= kWidest)
        widths[c] = std::max(widths[c], width);
    }
  }
  std::string out;
  for (const auto& row : shown) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const size_t width = WidthOf(row[c]);
      const std::string padding(widths[c] - std::min(widths[c], width), ' ');
      line += (c > 0 ? "  " : "") + (right[c] ? padding + row[c] : row[c] + padding);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out + AndMore(std::max(total, rows.size()) - shown.size(), "row");
}

std::string AndMore(size_t count, std::string_view what) {
  if (count == 0) return {};
  return fmt::format("… and {} more; `--json` has all\n", Count(static_cast<int64_t>(count), what));
}

std::string Wrapped(std::string_view text, size_t width, size_t indent) {
  std::string out;
  size_t column = indent;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    const size_t size = WidthOf(word);
    if (column > indent && column + 1 + size > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += size;
  }
  return out;
}

std::string WithoutNumbers(std::string_view text, std::string_view separators) {
  std::string out;
  ForEachPart(text, separators, [&](std::string_view part, std::string_view separator) {
    out += IsNumber(part) ? "*" : part;
    out += separator;
  });
  return out;
}

std::string AsOne(const std::vector<std::string_view>& texts, std::string_view separators) {
  std::vector<std::vector<std::string_view>> parts;  // by position in the text
  std::vector<std::string_view> behind;
  for (const std::string_view text : texts) {
    size_t place = 0;
    ForEachPart(text, separators, [&](std::string_view part, std::string_view separator) {
      if (place == parts.size()) {
        parts.emplace_back();
        behind.push_back(separator);
      }
      // Skip equal neighbours, which are common: there may be a million.
      if (parts[place].empty() || parts[place].back() != part) parts[place].push_back(part);
      ++place;
    });
  }
  std::string out;
  for (size_t p = 0; p < parts.size(); ++p) {
    out += parts[p].size() == 1 ? std::string(parts[p][0]) : InBraces(parts[p]);
    out += behind[p];
  }
  return out;
}

std::string RanksInText(const std::vector<int64_t>& ranks, size_t most) {
  std::string text;
  size_t ranges = 0;
  for (size_t i = 0; i < ranks.size(); ++ranges) {
    if (most > 0 && ranges == most) return text + ",…";
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += fmt::format_int(ranks[i]).str();
    if (end - i > 1) text += fmt::format("-{}", ranks[end - 1]);
    i = end;
  }
  return text;
}

namespace {

bool IsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string locale = Lower(value);
    return locale.find("utf-8") != locale.npos || locale.find("utf8") != locale.npos;
  }
  return false;
}

// Draws a bar that is `eighths` of a column long.
std::string Bar(int64_t eighths, bool blocks) {
  static constexpr std::string_view kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string bar;
  for (int64_t i = 0; i < eighths / 8; ++i) bar += blocks ? "█" : "#";
  if (blocks) bar += kParts[eighths % 8];
  return bar;
}

}  // namespace

BarStyle BarStyleOfOutput() {
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return {known ? size.ws_col : size_t{80}, IsUtf8()};
}

std::string Bars(std::span<const int64_t> counts, double min, double max, const BarStyle& style) {
  std::vector<std::string> labels;
  size_t widest = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(counts.size());
    labels.push_back(fmt::format("{:.4g}", min + (max - min) * part));
    widest = std::max(widest, labels.back().size());
  }
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  const size_t taken = widest + 2;
  const auto room = static_cast<double>(style.width > taken + 8 ? style.width - taken : 8);
  std::string text;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double part = most == 0 ? 0 : static_cast<double>(counts[i]) / static_cast<double>(most);
    const std::string bar = Bar(std::lround(part * room * 8), style.blocks);
    text += fmt::format("{:>{}}{}{}\n", labels[i], widest, bar.empty() ? "" : "  ", bar);
  }
  return text;
}

}  // namespace shardinit
