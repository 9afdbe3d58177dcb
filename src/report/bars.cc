#include "report/bars.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace shardinit {
namespace {

bool IsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string locale = value;
    std::transform(locale.begin(), locale.end(), locale.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return locale.find("utf-8") != locale.npos || locale.find("utf8") != locale.npos;
  }
  return false;
}

// Draws a bar of `eighths` of a column.
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
    const std::string bar = Bar(static_cast<int64_t>(part * room * 8 + 0.5), style.blocks);
    text += fmt::format("{:>{}}{}{}\n", labels[i], widest, bar.empty() ? "" : "  ", bar);
  }
  return text;
}

}  // namespace shardinit
