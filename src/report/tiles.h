// Draws rectangles that fill a part of a page of any width: boxes of a tensor, or a treemap.
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
  std::string title;  // shown when a pointer is over the tile
  std::string label = {}, note = {}, link = {};
  bool is_tensor = false;  // whether the filter fades it
};

// `name` describes the picture to readers who cannot see it. `height` is in pixels. `width` is the
// largest width, or 0 for the page's width.
std::string TilesInHtml(std::string_view id, std::string_view name, double width, double height,
                        const std::vector<Tile>& tiles);

// Divides the square into areas with these weights. The areas keep their order, in rows from left
// to right, and are as close to squares as that permits. `ratio` is the drawn width of the square
// divided by its height.
std::vector<TileArea> TreemapOf(const std::vector<double>& weights, double ratio);

}  // namespace shardinit
