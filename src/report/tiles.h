// Draws rectangles that fill a part of a page, whatever its width: boxes of a tensor, or a treemap.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/html.h"

namespace shardinit {

// A rectangle within a square of side 1.
struct TileArea {
  double x = 0, y = 0, width = 0, height = 0;
};

struct Tile {
  TileArea area;
  HtmlColours colours;
  std::string title;  // what a pointer over it shows
  std::string label = {}, note = {}, link = {};
  bool is_tensor = false;  // the filter fades it
};

// `name` describes the picture to those who do not see it. `height` is in pixels; `width` is the
// largest one, or 0 for the page's.
std::string TilesInHtml(std::string_view id, std::string_view name, double width, double height,
                        const std::vector<Tile>& tiles);

// Divides the square in areas of these weights. They stand in their order, in rows from left to
// right, and are as little narrow as this lets them be. `ratio` is the width of the square over its
// height, as it is drawn.
std::vector<TileArea> TreemapOf(const std::vector<double>& weights, double ratio);

}  // namespace shardinit
