#include "report/tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace shardinit {
namespace {

// Returns the mean of long side over short side of the areas in a row that has the weights from
// `first` to `end`. `total` is the sum of all weights.
double LengthOf(const std::vector<double>& weights, size_t first, size_t end, double total,
                double ratio) {
  const double row = std::accumulate(weights.begin() + static_cast<std::ptrdiff_t>(first),
                                     weights.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
  double sum = 0;
  for (size_t i = first; i < end; ++i) {
    const double across = weights[i] / row * ratio, down = row / total;
    sum += across > 0 && down > 0 ? std::max(across / down, down / across) : 1e9;
  }
  return sum / static_cast<double>(end - first);
}

}  // namespace

std::string TilesInHtml(std::string_view id, std::string_view name, double width, double height,
                        const std::vector<Tile>& tiles) {
  std::string out = fmt::format(
      "<div class=\"tiles\" id=\"{}\" role=\"img\" aria-label=\"{}\" style=\"height:{}px{}\">\n",
      EscapeHtml(id), EscapeHtml(name), NumberInHtml(height),
      width > 0 ? fmt::format(";max-width:{}px", NumberInHtml(width)) : "");
  for (const Tile& tile : tiles) {
    const TileArea& area = tile.area;
    const char* tag = tile.link.empty() ? "i" : "a";
    const bool has_note = !tile.note.empty();
    // A border would hide a tile that is a few pixels wide.
    const bool is_thin = std::min(area.width * 700, area.height * height) < 6;
    out +=
        fmt::format("<{}{} class=\"k{}{}{}\" style=\"inset:{}% {}% {}% {}%;{}\" title=\"{}\">", tag,
                    tile.link.empty() ? "" : fmt::format(" href=\"#{}\"", EscapeHtml(tile.link)),
                    has_note             ? " tile"
                    : tile.label.empty() ? ""
                                         : " box",
                    is_thin ? " thin" : "", tile.is_tensor ? " f" : "", NumberInHtml(100 * area.y),
                    NumberInHtml(100 * (1 - area.x - area.width)),
                    NumberInHtml(100 * (1 - area.y - area.height)), NumberInHtml(100 * area.x),
                    tile.colours.Style(), EscapeHtml(tile.title));
    out += has_note ? fmt::format("<b>{}</b><small>{}</small>", PathInHtml(tile.label),
                                  EscapeHtml(tile.note))
                    : EscapeHtml(tile.label);
    out += fmt::format("</{}>\n", tag);
  }
  return out + "</div>\n";
}

std::vector<TileArea> TreemapOf(const std::vector<double>& weights, double ratio) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<TileArea> areas(weights.size());
  if (total <= 0) return areas;
  double y = 0;
  for (size_t first = 0; first < weights.size();) {
    size_t end = first + 1;
    // Extend the row while that does not make its areas longer.
    while (end < weights.size() && LengthOf(weights, first, end + 1, total, ratio) <=
                                       LengthOf(weights, first, end, total, ratio)) {
      ++end;
    }
    double row = 0, x = 0;
    for (size_t i = first; i < end; ++i) row += weights[i];
    for (size_t i = first; i < end; ++i) {
      const double width = row > 0 ? weights[i] / row : 0;
      areas[i] = {x, y, width, row / total};
      x += width;
    }
    y += row / total;
    first = end;
  }
  return areas;
}

}  // namespace shardinit
