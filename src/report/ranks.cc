#include "report/ranks.h"

#include <fmt/format.h>

namespace shardinit {

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

}  // namespace shardinit
