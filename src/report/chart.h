// Draws charts with two axes, each with a name and the values at its ends.
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

// All coordinates in the chart are from 0 to 1, rightward and upward.
class Chart {
 public:
  void Bar(double x, double width, double from, double to, std::string_view style,
           std::string_view title = {});
  using Points = std::vector<std::pair<double, double>>;
  void Line(const Points& points, std::string_view style = {});
  // Fills the area between two lines.
  void Band(const Points& below, const Points& above, std::string_view style,
            std::string_view title = {});

  std::string InHtml(const ChartFrame& frame) const;

 private:
  std::string marks_;
};

}  // namespace shardinit
