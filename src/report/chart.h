// Draws charts over two axes, each with its name and the values at its ends.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardinit {

struct ChartFrame {
  std::string title;
  std::string y, top, bottom;                 // the vertical axis
  std::string x = {}, left = {}, right = {};  // the horizontal axis
};

// What is in a chart has coordinates from 0 to 1, to the right and up.
class Chart {
 public:
  void Bar(double x, double width, double from, double to, std::string_view style,
           std::string_view title = {});
  using Points = std::vector<std::pair<double, double>>;
  void Line(const Points& points, std::string_view style = {});
  // Fills what lies between two lines.
  void Band(const Points& below, const Points& above, std::string_view style,
            std::string_view title = {});

  std::string InHtml(const ChartFrame& frame) const;

 private:
  std::string marks_;
};

}  // namespace shardinit
